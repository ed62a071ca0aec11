"""Floods of connections from an attacker, by threads with ordinary sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flowedge.network.address import split_address

ANSWER_S = 15.0


def attacker_context(certificate: Path | None) -> ssl.SSLContext:
    """TLS settings that accept every server. certificate: PEM of key and certificate; None shows none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def handshake(address: str, context: ssl.SSLContext, source: str = "127.0.0.1") -> str:
    """Complete one handshake and close; return the version of TLS. source: the own address."""
    with (
        socket.create_connection(split_address(address), ANSWER_S, (source, 0)) as plain,
        context.wrap_socket(plain) as encrypted,
    ):
        return str(encrypted.version())


class HandshakeFlood:
    """Threads that shake hands one after another, while the context lasts.

    Attributes:
        outcomes: number of handshakes by outcome: a version of TLS, or the kind of an error.
    """

    def __init__(
        self, address: str, context: ssl.SSLContext, threads: int, source: str = "127.0.0.1"
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address, self._context, self._source = address, context, source
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    @property
    def done(self) -> int:
        """How many handshakes succeeded."""
        return sum(number for kind, number in self.outcomes.items() if kind.startswith("TLS"))

    def __enter__(self) -> HandshakeFlood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_S)

    def wait(self, number: int, seconds: float) -> None:
        """Return when so many handshakes have succeeded, or the time is over."""
        deadline = time.monotonic() + seconds
        while self.done < number and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                outcome = handshake(self._address, self._context, self._source)
            except OSError as error:  # ssl.SSLError as well
                outcome = type(error).__name__
            self.outcomes[outcome] += 1


@contextlib.contextmanager
def silent_connections(address: str, number: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Open connections that say nothing; those that are refused are left out."""
    opened = []
    for _ in range(number):
        with contextlib.suppress(OSError):
            opened.append(socket.create_connection(split_address(address), ANSWER_S, (source, 0)))
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def count_open(connections: list[socket.socket]) -> int:
    """Return how many connections the other side has not closed."""
    return sum(not _is_closed(each) for each in connections)


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
