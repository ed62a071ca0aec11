"""The parts that a device takes in a pipeline: stage and draft node."""
