"""The operation of an agent: logs, metrics, health, draining, and the pipeline it keeps up."""
