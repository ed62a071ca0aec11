"""Layers whose rows update a state: the state of a draft row is its parent's, one update further."""
