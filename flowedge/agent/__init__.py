"""The agent, one process a device: its config, roles, services and operation."""
