"""The locked wheels of the pinned platform, and the audit of what is installed."""
