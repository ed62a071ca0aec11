"""The agent, one process a device: its settings, roles, services and operation."""
