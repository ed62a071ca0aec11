"""The state machine of a pipeline stage: its sessions, what it computes together, and what it sends."""
