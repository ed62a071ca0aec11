"""Attention of a forward's rows over the caches of their sessions."""
