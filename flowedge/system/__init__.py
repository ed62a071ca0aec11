"""The device under the agent: memory, kind, temperatures, private files, the state directory and systemd."""
