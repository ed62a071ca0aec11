"""The TCP connections that a server of this process has accepted.

gRPC's Python API neither lists a server's connections nor closes a single one.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class TcpConnection:
    """An accepted connection.

    Attributes:
        peer: the peer's IP address and port.
        descriptor: of the socket when the connection was listed. It may have been closed since.
    """

    peer: tuple[str, int]
    descriptor: int

    @property
    def host(self) -> str:
        return self.peer[0]


def accepted_connections(port: int) -> list[TcpConnection]:
    """Return the connections to a port on which this process listens."""
    return [
        TcpConnection((_plain_ip(found.raddr.ip), found.raddr.port), found.fd)
        for found in psutil.Process().net_connections("tcp")
        if found.raddr and found.laddr.port == port and found.status != psutil.CONN_LISTEN
    ]


def open_descriptors() -> int:
    """Return the number of open files and sockets of this process; its connections are fewer."""
    return int(psutil.Process().num_fds())


def shut_down(connection: TcpConnection) -> None:
    """End a connection in both directions, so that its owner finds it at its end and closes it.

    Does nothing if the connection has been closed since it was listed.
    """
    try:
        # The copy keeps the socket from being closed, and its number from another use, while it is looked at.
        copy = os.dup(connection.descriptor)
    except OSError:
        return
    try:
        _shut_down_if(copy, connection.peer)
    except OSError:
        return
    finally:
        os.close(copy)


def _shut_down_if(descriptor: int, peer: tuple[str, int]) -> None:
    """Raise OSError if the descriptor is no connected socket."""
    seen = socket.socket(fileno=descriptor)
    try:
        if seen.family in (socket.AF_INET, socket.AF_INET6):
            host, port, *_ = seen.getpeername()
            if (_plain_ip(host), port) == peer:
                seen.shutdown(socket.SHUT_RDWR)
    finally:
        seen.detach()


def peer_of(text: str) -> tuple[str, int] | None:
    """Return the IP address and port in gRPC's name of a peer, such as "ipv4:127.0.0.1:9".

    Returns None for a peer without an IP address.
    """
    kind, _, address = text.partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return _plain_ip(host.replace("%5B", "").replace("%5D", "").strip("[]")), int(port)
    except ValueError:
        return None


def _plain_ip(text: str) -> str:
    """Return the address without its zone, and an IPv4 address that is written as IPv6 as IPv4."""
    ip = ipaddress.ip_address(text.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
