"""Mutated messages against live agents."""
