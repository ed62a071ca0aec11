"""Training of EAGLE heads: data, features of the target, updates, checkpoints and evaluation."""
