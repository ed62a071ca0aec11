"""Reuse of rows that sessions have computed by sessions whose prompts begin alike."""
