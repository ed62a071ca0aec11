"""The chat in a terminal: its input, its commands, and what it shows beside the answers."""
