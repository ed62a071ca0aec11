"""Linear layers in 8 and 4 bits, and the cache of quantised weights on disk."""
