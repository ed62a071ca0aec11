"""The device under the agent: memory, compute, temperature, private files, state directory, systemd."""
