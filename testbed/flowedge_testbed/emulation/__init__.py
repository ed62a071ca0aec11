"""Emulated pipelines: sizes, devices, links and whether they fit in memory."""
