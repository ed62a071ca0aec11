"""A model's checkpoint, of Hugging Face or GGUF. Readers raise CheckpointError for unusable files."""
