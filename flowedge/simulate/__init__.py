"""Pipelines in one process, on a virtual clock whose times are given by a cost table."""
