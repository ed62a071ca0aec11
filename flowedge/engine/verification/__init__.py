"""Verification by the last stage: it draws the target's tokens and returns them in place of all rows."""
