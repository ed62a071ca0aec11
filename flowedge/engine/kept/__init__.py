"""Caches that a stage keeps of sessions that have ended."""
