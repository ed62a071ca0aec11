"""What GGUF files say of a model, by its family: config and tensors. Unusable files raise CheckpointError."""
