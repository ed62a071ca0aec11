"""Model files: config, tokenizer and tensors. Readers raise CheckpointError for unusable files."""
