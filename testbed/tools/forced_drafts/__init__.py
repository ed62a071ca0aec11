"""Measure what a JSON schema costs and saves: drafter forwards and speed, with and without forced tokens."""
