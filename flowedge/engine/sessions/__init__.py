"""What the sessions of a draft node have in common."""
