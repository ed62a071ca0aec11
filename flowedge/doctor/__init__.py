"""Finds what keeps devices from working together; see docs/discovery.md. Judges are pure, probes are not."""
