"""A connection that carries frames, written by any thread and read by the link thread, which is here too."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from flowedge.live.transport.frame_reader import FrameReader
from flowedge.network.connection_failure import why_of_socket
from flowedge.protocol.wire import Frame


class MonitoredSocket(Protocol):
    """A connection that the link thread watches; it calls these methods."""

    def handle(self, *, readable: bool, writable: bool) -> bool:
        """Read and write what there is; return whether the connection goes on. Must not raise."""

    def dispose(self) -> None:
        """Close the socket."""


class LinkThread:
    """Waits for all connections at once. The calls of their owners are short, so that no link waits long."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, MonitoredSocket] = {}
        # A daemon, so that a process that is told to stop does not wait for it.
        threading.Thread(target=self._run, name="links", daemon=True).start()

    def add(self, descriptor: int, watched: MonitoredSocket) -> None:
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


JOINED_BYTES = 16 << 10  # a frame up to this size is written at once; it is one record of TLS
RECORDS = 8  # of TLS that are read of a large frame before a writer may have the connection
SLOWEST_BYTES_PER_S = 8 << 10  # at which a large frame may come; heartbeats alone are far slower
TURNS = 8  # of so many records before the other links are read

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SocketEvents:
    """The functions by which a connection tells its owner of an event; all are called in the link thread."""

    on_frame: Callable[[bytes, bytearray], None]  # with the head and the tail
    on_too_large: Callable[[int], None]  # with the bytes of a frame that was dropped
    on_closed: Callable[[str], None]  # with the reason; called once
    on_ready: Callable[[], None]  # the frames that waited have been written


class FrameSocket:
    """A connection in TLS or plaintext. Reading never waits for writing, and neither of them blocks a thread.

    A frame is written by the thread that sends it, as far as the kernel takes it; the link thread writes the
    rest. The lock is there because OpenSSL lets only one thread at a time use a connection.

    Attributes:
        max_frame_bytes: most bytes of a frame; a larger frame is dropped as it comes.
    """

    def __init__(self, connected: socket.socket, max_frame_bytes: int) -> None:
        """connected: a connection after its TLS handshake, if it has one; it becomes the FrameSocket's."""
        connected.setblocking(False)
        with contextlib.suppress(OSError):  # of a family that has no such option
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = time.monotonic()
        self._socket = connected
        self._encrypted = isinstance(connected, ssl.SSLSocket)
        self._reader = FrameReader(max_frame_bytes)
        self._thread: LinkThread | None = None
        self._events: SocketEvents | None = None
        self._lock = threading.Lock()
        self._unsent: deque[list[memoryview]] = deque()  # the frames that are not all written
        self._blocked_since: float | None = None  # when the first of them began to wait
        self._closed = ""

    @property
    def max_frame_bytes(self) -> int:
        return self._reader.most

    @max_frame_bytes.setter
    def max_frame_bytes(self, most: int) -> None:
        self._reader.most = most

    @property
    def silent_s(self) -> float:
        """The seconds for which no whole frame has come. The bytes of one that has begun count for some."""
        return time.monotonic() - self._heard

    @property
    def blocked(self) -> bool:
        """Whether the kernel took a frame in part: `on_ready` is called when it has taken the rest."""
        return self._blocked_since is not None

    @property
    def num_waiting(self) -> int:
        """Frames that the kernel has not taken yet."""
        return len(self._unsent)

    @property
    def blocked_s(self) -> float:
        """The seconds for which the first waiting frame has been waiting; 0 if no frame waits."""
        since = self._blocked_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self, events: SocketEvents) -> None:
        """Begin to read. Events may come before this returns."""
        self._events = events
        self._thread = link_thread()
        self._thread.add(self._socket.fileno(), self)

    def send(self, frame: Frame) -> None:
        """Write a frame behind those that wait, as far as the kernel takes it now.

        Raises:
            ConnectionError: when the connection is closed.
        """
        parts = [memoryview(frame.start), memoryview(frame.tail)]
        if frame.num_bytes <= JOINED_BYTES:
            parts = [memoryview(frame.start + bytes(frame.tail) if frame.tail else frame.start)]
        with self._lock:
            if self._closed:
                raise ConnectionError(self._closed)
            self._unsent.append(parts)
            if len(self._unsent) > 1:  # the link thread is at work on the frame before
                return
            if not self._flush():
                self._blocked_since = time.monotonic()
                self._want_write(True)

    def close(self, reason: str = "the connection was closed by this side") -> None:
        """End the connection; frames that wait are dropped. May be called in any thread, and again."""
        with self._lock:
            if self._closed:
                return
            self._closed = reason
            self._drop()
            with contextlib.suppress(OSError):
                # The link thread sees the end and closes the socket: its number has no other use before.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        if self._thread is None:
            self._socket.close()

    def handle(self, *, readable: bool, writable: bool) -> bool:
        """Read and write what there is; return whether the connection goes on. Called by the link thread."""
        reason = ""
        try:
            if writable:
                self._write_more()
            if readable:
                reason = self._read_more()
        except OSError as error:
            reason = f"the connection failed: {_reason(error)}"
        except Exception as error:  # noqa: BLE001 (a bug of one link's owner must not end the other links)
            _log.exception("a link failed")
            reason = f"internal error: {type(error).__name__}: {error}"
        if not reason and not self._closed:
            return True
        with self._lock:
            self._closed = self._closed or reason
            self._drop()
        assert self._events is not None
        self._events.on_closed(self._closed)
        return False

    def dispose(self) -> None:
        """Close the socket. Called by the link thread, which does not use its number any more."""
        with self._lock:
            self._closed = self._closed or "the connection was closed"
            self._socket.close()
        self._events = None  # whose owner refers to this connection

    def _drop(self) -> None:
        self._unsent.clear()
        self._blocked_since = None

    def _flush(self) -> bool:
        """Write the first frame; return whether all of it is written. An error shows at the next reading."""
        parts = self._unsent[0]
        while parts:
            try:
                count = self._socket.send(parts[0])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                return False
            except OSError:
                self._drop()
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
                return True
            if count == len(parts[0]):
                del parts[0]
            else:
                parts[0] = parts[0][count:]
        self._unsent.popleft()
        return True

    def _write_more(self) -> None:
        with self._lock:
            while self._unsent:
                if not self._flush():
                    return
                self._blocked_since = time.monotonic() if self._unsent else None
            self._want_write(False)
        assert self._events is not None
        self._events.on_ready()

    def _receive(self, space: memoryview, fill: bool) -> tuple[int, bool]:
        """Receive into memory; return how many bytes came, and whether TLS holds more.

        fill: whether to receive several records; otherwise one is enough.
        """
        with self._lock:
            count = last = self._socket.recv_into(space)
            for _ in range(RECORDS if fill and last else 0):
                if count == len(space):
                    break
                try:
                    last = self._socket.recv_into(space[count:])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    break
                if not last:  # the end, which the next call finds again
                    break
                count += last
            return count, self._encrypted and bool(self._socket.pending())  # type: ignore[attr-defined]

    def _want_write(self, wanted: bool) -> None:
        if self._thread is not None:
            self._thread.want_write(self._socket.fileno(), wanted)

    def _read_more(self) -> str:
        """Hand on the frames that have come; return why the connection has ended, or ""."""
        assert self._events is not None
        reader, events = self._reader, self._events
        for turn in itertools.count():
            if self._closed:
                return ""
            try:
                count, more = self._receive(reader.space(), reader.in_chunks)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                return ""
            if not count:
                return "it closed the connection"
            heard = self._heard + count / SLOWEST_BYTES_PER_S
            for head, tail in reader.filled(count, events.on_too_large):
                heard = math.inf
                events.on_frame(head, tail)
            self._heard = min(heard, time.monotonic())
            if not more and not (reader.in_chunks and turn < TURNS):
                return ""  # what is still in the kernel is told again
        return ""


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", "")  # of TLS
    return str(reason) if reason else why_of_socket(error)
