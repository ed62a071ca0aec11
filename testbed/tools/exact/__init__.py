"""Exact decoding measured: what it costs, and how its results differ between machines."""
