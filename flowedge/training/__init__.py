"""Training of an EAGLE head for a target: data, features, recipe, checkpoints and evaluation."""
