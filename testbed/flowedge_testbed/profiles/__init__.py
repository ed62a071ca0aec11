"""Devices, emulated models and links as YAML, and the typed values they are read into."""
