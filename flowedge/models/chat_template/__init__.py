"""Chat templates, which are programs of a checkpoint: they run in a process with limits."""
