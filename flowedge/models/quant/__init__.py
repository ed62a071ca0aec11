"""Linear layers in 8 and 4 bits, those of other quantisers, and the cache of quantised weights on disk."""
