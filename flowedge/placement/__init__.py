"""Splitting a model over devices, and checking that each part fits."""
