"""Faults of every device under running answers: none may be lost, none may change."""
