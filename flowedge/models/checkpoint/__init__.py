"""Model files: config, tokenizer, and tensors that are read a few rows at a time."""
