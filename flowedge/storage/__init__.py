"""The cache on disk: what it may take, who uses what of it, and what is dropped. Imports no torch."""
