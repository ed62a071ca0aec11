"""Runs on agents: devices that work in real time."""
