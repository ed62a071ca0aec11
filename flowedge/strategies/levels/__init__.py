"""PipeDec, SpecPipe and SpecPipe-DB, which send a speculative tree through the pipeline level by level."""
