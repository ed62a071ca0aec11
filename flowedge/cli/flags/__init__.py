"""Flags of a command that are made of the declarations of its settings."""
