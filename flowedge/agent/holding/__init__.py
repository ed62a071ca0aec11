"""What a device holds for a pipeline: its content, the LM head, what was left loaded, and its speed."""
