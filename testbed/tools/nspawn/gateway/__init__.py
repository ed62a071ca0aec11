"""The gateway as a service of a booted board."""
