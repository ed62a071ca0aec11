"""The most tokens/s that any schedule of the same rows in flight could reach."""
