"""GGUF files: header, blocks of weights, tokenizer. Unusable files raise CheckpointError."""
