"""The TLS versions of this process. To be imported before grpc, which reads its environment at its import."""

from __future__ import annotations

import os

# gRPC's Python API sets no least version. Its list of ciphers is for TLS 1.2 and older only, and none of them
# fits an ECDSA certificate when the list has ciphers of RSA alone; TLS 1.3 has a list of its own.
_CIPHERS_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_NONE_OF_ECDSA = "ECDHE-RSA-AES128-GCM-SHA256"


def require_tls13() -> None:
    """Have gRPC refuse handshakes of versions before TLS 1.3, as server and as client."""
    os.environ[_CIPHERS_VARIABLE] = _NONE_OF_ECDSA
