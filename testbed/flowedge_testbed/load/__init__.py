"""Many requests over one pipeline: when they arrive, how they are carried out, and what is measured."""
