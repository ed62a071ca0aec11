"""Measuring this device, and having agents measure theirs and the links between them; writes profiles."""
