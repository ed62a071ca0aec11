"""The reference that generated tokens are checked against, and the judgement of differences."""
