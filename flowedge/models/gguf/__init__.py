"""GGUF files: header, metadata, tensors, config, tokenizer. Unusable files raise CheckpointError."""
