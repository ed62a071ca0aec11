"""Whether a server can listen on a port, what to do if it cannot, and whether one answers at an address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from flowedge.core.errors import DeadlineError, DeviceError, DeviceLostError
from flowedge.network.address import host_ip, join_address, split_address
from flowedge.network.connection_failure import TLS_HINT, why_of_socket
from flowedge.network.deadline import within
from flowedge.network.device_state import ConnectResult

OTHER_PORT = "end that program, or choose another port"

_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # an empty SETTINGS frame
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS  # RFC 9113, section 3.4
_HEADER_BYTES = 9
_SETTINGS_TYPE = 4


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


async def check_http2(address: str, timeout_s: float) -> None:
    """Check that a server at an address begins to speak HTTP/2 in plaintext.

    A channel of gRPC that is closed while it connects keeps its socket, for 20 s if the server says nothing.
    So a caller of many unknown addresses asks with a socket of its own first, which is closed at once.

    Raises:
        DeviceLostError: when it does not within `timeout_s`.
    """
    try:
        await within(timeout_s, _first_frame(address), "no answer")
    except DeadlineError as error:
        raise DeviceLostError(address, f"no answer within {timeout_s:g} s") from error
    except asyncio.IncompleteReadError as error:
        raise DeviceLostError(address, f"it closed the connection at once{TLS_HINT}") from error
    except OSError as error:
        raise DeviceLostError(address, f"the connection failed: {why_of_socket(error)}") from error


async def _first_frame(address: str) -> None:
    reader, writer = await asyncio.open_connection(*split_address(address))
    try:
        writer.write(HTTP2_PREFACE)
        header = await reader.readexactly(_HEADER_BYTES)
        if header[3] != _SETTINGS_TYPE:
            raise DeviceLostError(address, "it does not speak HTTP/2, so it is not a FlowEdge agent")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def try_connect(address: str, timeout_s: float) -> ConnectResult:
    """Return what comes of a TCP connection to an address, which is closed at once."""
    try:
        opening = asyncio.open_connection(*split_address(address))
        _, writer = await within(timeout_s, opening, "no connection")
    except DeadlineError:
        return ConnectResult.SILENT
    except OSError as error:
        if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
            return ConnectResult.REFUSED  # asyncio joins the errors of several addresses to one text
        return ConnectResult.SILENT if error.errno == errno.EHOSTUNREACH else ConnectResult.NO_ROUTE
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ConnectResult.OPEN
