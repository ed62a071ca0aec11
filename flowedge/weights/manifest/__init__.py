"""What a model consists of: files and tensors, each named by its SHA-256."""
