"""What stages and draft nodes add to a segment beside computing, measured between real processes."""
