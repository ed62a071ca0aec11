"""Streams of pipeline messages over gRPC: the sending and the receiving end of a link."""
