"""The agent: the process of a device, its settings, and what it is made of."""
