"""The training of each kind of head."""
