"""Raw HTTP over sockets: bytes that no HTTP client would send."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

SOCKET_S = 60.0  # for any wait of a test


class RawAnswer(NamedTuple):
    """An answer as it came; `rest` is what came behind the headers."""

    status: int
    headers: dict[str, str]
    rest: bytes


@contextmanager
def connected(host: tuple[str, int], receive_buffer: int = 0) -> Iterator[socket.socket]:
    """A connection to a gateway; with a receive buffer of so many bytes, 0 for the system's."""
    with socket.socket() as connection:
        connection.settimeout(SOCKET_S)
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(host)
        yield connection


def head(method: str, path: str, *headers: str) -> bytes:
    """Return the bytes of a request's line and headers, with the empty line."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes the connection."""
    content = b""
    try:
        while piece := connection.recv(65536):
            content += piece
    except ConnectionResetError:  # closed with what it had not read
        pass
    return content


def parsed(content: bytes) -> RawAnswer:
    """Return the first answer of some bytes."""
    begin, _, rest = content.partition(b"\r\n\r\n")
    line, *headers = begin.decode().split("\r\n")
    pairs = (header.split(": ", 1) for header in headers)
    return RawAnswer(int(line.split(" ")[1]), {name.lower(): value for name, value in pairs}, rest)


def exchange(host: tuple[str, int], *pieces: bytes) -> RawAnswer:
    """Send bytes and return the answer, when the other side has closed the connection."""
    with connected(host) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return parsed(read_all(connection))
