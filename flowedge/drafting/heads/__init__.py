"""EAGLE draft heads: their layers, their files, and the drafter that runs them."""
