"""The ways of decoding: each takes events in and gives commands out, without I/O and without a clock."""
