"""Who may ask a gateway, and how much: API keys, callers, limits, use."""
