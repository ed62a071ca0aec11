"""Keeping a pipeline up: assembling it, taking boards in, and setting it up again when a device is lost."""
