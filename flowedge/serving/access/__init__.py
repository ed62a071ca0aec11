"""Who may use the gateway: API keys, the limits of each key, and the caller of a request."""
