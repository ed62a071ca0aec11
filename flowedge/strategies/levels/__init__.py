"""PipeDec and SpecPipe, which send a speculative tree through the pipeline level by level."""
