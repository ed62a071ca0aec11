"""Rows whose bits depend on their own paths alone: attention in the order of positions, fixed row counts."""
