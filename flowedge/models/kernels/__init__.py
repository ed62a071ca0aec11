"""The layers of a block, computed by the compiled kernels."""
