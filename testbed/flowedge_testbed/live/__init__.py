"""Runs on agents in real time."""
