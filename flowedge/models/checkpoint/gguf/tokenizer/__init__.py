"""The tokenizer of a GGUF model: its files, and the rules that split text into words."""
