"""Whether a server can listen on a port, and what to do if it cannot."""

from __future__ import annotations

import errno
import socket

from flowedge.core.errors import DeviceError
from flowedge.network.address import host_ip, join_address

OTHER_PORT = "end that program, or choose another port"


def check_can_listen(host: str, port: int, device: str, other_port: str = OTHER_PORT) -> None:
    """Check that no other program listens on a port, before a server that would log its own error tries.

    Args:
        host: an IP address of this device; empty for all its networks.
        port: 0 for a free port, which there always is.
        other_port: what to do if the port is in use.

    Raises:
        DeviceError: when nothing can listen there; it names `device`.
    """
    if not port:
        return
    ip = host_ip(host or "0.0.0.0")
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of an agent that has ended must not keep the next one from starting.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            raise listening_error(error, ip, port, device, other_port) from error


def listening_error(
    error: OSError, host: str, port: int, device: str, other_port: str = OTHER_PORT
) -> DeviceError:
    """Return the error for a server that cannot listen; see `check_can_listen` for the arguments."""
    match error.errno:
        case errno.EADDRINUSE:
            reason = f"port {port} is in use by another program on {host}; {other_port}"
        case errno.EACCES:
            reason = f"this user may not listen on port {port}; choose a port from 1024 on"
        case errno.EADDRNOTAVAIL:
            reason = f"{host} is not an address of this device; give one of its own, or 0.0.0.0 for all"
        case _:
            reason = f"cannot listen on {join_address(host, port)}: {error.strerror}"
    return DeviceError(device, reason)
