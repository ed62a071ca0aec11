"""The frozen target in this process or on the agents of a pipeline."""
