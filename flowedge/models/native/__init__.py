"""Decoder layers that the compiled kernels compute, several layers a call."""
