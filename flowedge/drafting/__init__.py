"""Drafters, which propose the tokens of draft trees. Files that do not fit raise CheckpointError."""
