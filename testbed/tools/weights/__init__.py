"""Processes that move the same bytes over one link: by plain TCP, and as agents fetch weights."""
