"""Products of quantised weights on an emulated ARM64 processor."""
