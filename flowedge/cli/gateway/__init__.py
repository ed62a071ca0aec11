"""The pipelines and agents of `flowedge serve`."""
