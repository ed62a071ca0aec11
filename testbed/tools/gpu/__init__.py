"""What CUDA graphs cost and save, and which kernels a GPU gets."""
