"""Connects to an agent's port, and asks the system what it learnt of the way there."""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass

from flowedge.doctor.checks.ports import ConnectResult
from flowedge.net.address import split_address

_TIMESTAMPS = 1  # bit of tcpi_options
_TCP_TIMESTAMP_BYTES = 12


@dataclass(frozen=True)
class ConnectionAttempt:
    """What came of it.

    Attributes:
        local: our own address on the way; empty when there is none.
        segment_mtu: bytes of the largest IP packet that the two agreed on in TCP; None without a connection.
    """

    reach: ConnectResult
    local: str = ""
    segment_mtu: int | None = None


def connect(address: str, timeout_s: float) -> ConnectionAttempt:
    """One TCP connection, closed again."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_s) as stream:
            return ConnectionAttempt(ConnectResult.OPEN, str(stream.getsockname()[0]), _segment_mtu(stream))
    except TimeoutError:
        return ConnectionAttempt(ConnectResult.SILENT)
    except ConnectionRefusedError:
        return ConnectionAttempt(ConnectResult.REFUSED)
    except OSError as error:
        # A neighbour that answers no ARP is off, or behind a filter.
        return ConnectionAttempt(
            ConnectResult.SILENT if error.errno == errno.EHOSTUNREACH else ConnectResult.NO_ROUTE
        )


def _segment_mtu(stream: socket.socket) -> int:
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    options, (segment,) = info[5], struct.unpack_from("I", info, 16)
    ip_header = 40 if stream.family == socket.AF_INET6 else 20
    timestamps = _TCP_TIMESTAMP_BYTES if options & _TIMESTAMPS else 0
    return int(segment) + ip_header + 20 + timestamps
