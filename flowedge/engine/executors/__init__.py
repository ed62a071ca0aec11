"""Executors: the jobs of the state machines, run on real models."""
