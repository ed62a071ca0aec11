"""Fetching objects from several devices at once."""
