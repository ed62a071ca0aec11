"""What drafters cost, and what parts of the vocabulary do to their acceptance."""
