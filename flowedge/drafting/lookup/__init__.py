"""Lookup: drafts that repeat what followed the same tokens earlier in a text."""
