"""Products of rows with weights by the compiled kernels."""
