"""Training texts: examples on disk, the target's own answers, tokens and batches."""
