"""The versions this installation speaks of itself."""

VERSION = "0.1.0"
# Raised when devices of the old and the new kind could not work together.
PROTOCOL_VERSION = 12
