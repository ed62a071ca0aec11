"""The tokens that a drafter proposes, and the LM head over them."""
