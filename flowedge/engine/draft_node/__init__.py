"""The state machine of the draft node: admission, drafting, the target's draws and retained sessions."""
