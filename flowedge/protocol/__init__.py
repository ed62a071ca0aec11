"""The rules of the pipeline without I/O: epochs, prunes, row sequences and the wire format."""
