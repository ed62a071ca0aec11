"""The kinds of heads in training: their first weights, their losses and their files."""
