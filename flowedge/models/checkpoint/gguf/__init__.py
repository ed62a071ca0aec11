"""GGUF files: their header, tensors, config and tokenizer, in the form of a Hugging Face checkpoint."""
