"""Weights that GPTQ, AWQ and compressed-tensors stored as integers: their layouts, and what is refused."""
