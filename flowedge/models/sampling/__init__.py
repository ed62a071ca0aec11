"""The draws of tokens from logits: exact, and prepared on a GPU so that few numbers are copied."""
