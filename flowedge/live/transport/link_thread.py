"""The thread that reads all links of this process, and writes what the kernel did not take at once."""

from __future__ import annotations

import select
import threading
from functools import cache
from typing import Protocol


class WatchedSocket(Protocol):
    """A connection that the link thread watches; it calls these methods."""

    def handle(self, *, readable: bool, writable: bool) -> bool:
        """Read and write what there is; return whether the connection goes on. Must not raise."""

    def dispose(self) -> None:
        """Close the socket."""


class LinkThread:
    """Waits for all connections at once. The calls of their owners are short, so that no link waits long."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, WatchedSocket] = {}
        # A daemon, so that a process that is told to stop does not wait for it.
        threading.Thread(target=self._run, name="links", daemon=True).start()

    def add(self, descriptor: int, watched: WatchedSocket) -> None:
        """Watch a connection until its `handle` returns False; the thread disposes of the connection then."""
        self._sockets[descriptor] = watched
        self._epoll.register(descriptor, select.EPOLLIN)

    def want_write(self, descriptor: int, wanted: bool) -> None:
        """Tell whether a watched connection waits for room in the kernel to write."""
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def _run(self) -> None:
        while True:
            for descriptor, events in self._epoll.poll():
                self._handle(descriptor, events)

    def _handle(self, descriptor: int, events: int) -> None:
        watched = self._sockets.get(descriptor)
        if watched is None:
            return
        readable, writable = bool(events & ~select.EPOLLOUT), bool(events & select.EPOLLOUT)
        if not watched.handle(readable=readable, writable=writable):
            del self._sockets[descriptor]
            self._epoll.unregister(descriptor)
            watched.dispose()


@cache
def link_thread() -> LinkThread:
    """Return the thread of this process; the first call starts it."""
    return LinkThread()
