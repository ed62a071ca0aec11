"""What agents do for a segment beside computing it, measured with models that only wait."""
