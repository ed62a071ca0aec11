"""The connection of a link, which outlives the TCP connections that carry its frames one after the other.

A network that fails for a moment ends a TCP connection, or has it wait for seconds longer than it failed. The
side that has opened the link makes another one then. Each side counts the frames that it has received, and
keeps those that it has sent until the other side has received them. So when a new TCP connection begins, each
side says its count and is sent what comes next: no frame is lost, and none comes twice.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Heartbeat
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.protocol import wire

KEPT_BYTES = 64 << 20  # of frames that may have to be sent again; beyond that the oldest are forgotten
TOLD_BYTES = 256 << 10  # received, of which the other side is told at once, not by the next heartbeat


class LinkConnection:
    """Carries frames as a FrameSocket does, by one FrameSocket after another.

    While there is none, frames wait, as if it were blocked. Methods may be called in any thread.

    Attributes:
        resumes: whether the other side takes up an interrupted connection.
    """

    def __init__(
        self, first: FrameSocket, *, resumes: bool, on_interrupted: Callable[[], None] = lambda: None
    ) -> None:
        """on_interrupted: called in the link thread when a TCP connection has ended that may be replaced."""
        self.resumes = resumes
        self._on_interrupted = on_interrupted
        self._lock = threading.RLock()
        self._socket: FrameSocket | None = first
        self._events: SocketEvents | None = None
        self._most = first.max_frame_bytes
        self._ended = ""
        self._received = 0  # frames
        self._untold_bytes = 0  # received since the other side was told of `_received`
        self._kept: deque[wire.Frame] = deque()  # the last frames that were sent
        self._kept_bytes = 0
        self._sent = 0  # frames
        self._interrupted_at = self._heard_at = 0.0  # while there is no FrameSocket
        self._sent_before = 0

    @classmethod
    def over(cls, connected: socket.socket, max_frame_bytes: int) -> LinkConnection:
        """Return a connection that ends with its only TCP connection."""
        return cls(FrameSocket(connected, max_frame_bytes), resumes=False)

    @property
    def max_frame_bytes(self) -> int:
        return self._most

    @property
    def interrupted(self) -> bool:
        """Whether there is no TCP connection now."""
        return self._socket is None

    @property
    def received(self) -> int:
        """The number of frames that have been received."""
        return self._received

    @property
    def silent_s(self) -> float:
        """See FrameSocket.silent_s."""
        current = self._socket
        return time.monotonic() - self._heard_at if current is None else current.silent_s

    @property
    def blocked(self) -> bool:
        """Whether a frame waits: `on_ready` is called when it does not any more."""
        current = self._socket
        return current is None or current.blocked

    @property
    def blocked_s(self) -> float:
        """The seconds for which the first waiting frame has been waiting; 0 if no frame waits."""
        current = self._socket
        return time.monotonic() - self._interrupted_at if current is None else current.blocked_s

    @property
    def num_waiting(self) -> int:
        """Frames that the kernel has not taken yet."""
        current = self._socket
        return self._sent - self._sent_before if current is None else current.num_waiting

    def start(self, events: SocketEvents) -> None:
        """Begin to read. Events may come before this returns."""
        self._events = events
        assert self._socket is not None, "it begins with one"
        self._read(self._socket)

    def send(self, frame: wire.Frame) -> None:
        """Write a frame behind those that wait, as far as the kernel takes it now.

        Raises:
            ConnectionError: when the connection is closed.
        """
        with self._lock:
            if self._ended:
                raise ConnectionError(self._ended)
            self._sent += 1
            if self.resumes:
                self._keep(frame)
            if self._socket is None:
                return
            try:
                self._socket.send(frame)
            except ConnectionError:
                if not self.resumes:
                    raise

    def acknowledge(self, count: int) -> None:
        """Forget the frames that the other side has received, given by their number since the beginning."""
        with self._lock:
            while self._kept and self._sent - len(self._kept) < count:
                self._kept_bytes -= self._kept.popleft().num_bytes

    def detach(self) -> int:
        """Read nothing more from the TCP connection; return the number of frames that have been received."""
        with self._lock:
            current = self._socket
            self._interrupt()
            received = self._received
        if current is not None:
            current.close("another connection takes its place")
        return received

    def attach(self, connected: socket.socket, count: int) -> None:
        """Go on with a new TCP connection, after `detach`.

        count: number of frames that the other side has received.

        Raises:
            ConnectionError: when the connection was closed meanwhile.
            ProtocolError: when the frames that come next have been forgotten, or were never sent.
        """
        with self._lock:
            if self._ended:
                raise ConnectionError(self._ended)
            first = self._sent - len(self._kept)
            if not first <= count <= self._sent:
                kept = f"kept are those from {first} to {self._sent}"
                raise ProtocolError(f"it has received {count} frames; {kept}")
            self.acknowledge(count)
            current, self._socket = self._socket, FrameSocket(connected, self._most)
            # From here on the TCP connection is the link thread's, and an error of it is told by `_lost`.
            self._read(self._socket)
            with contextlib.suppress(ConnectionError):
                for frame in self._kept:
                    self._socket.send(frame)
            ready = not self._socket.blocked
            self._untold_bytes = 0
        if current is not None:
            current.close("another connection takes its place")
        if ready:
            self._owner.on_ready()

    def close(self, reason: str = "the connection was closed by this side") -> None:
        """End the connection; frames that wait are dropped. May be called again."""
        with self._lock:
            self._ended = self._ended or reason
            self._kept.clear()
            current = self._socket
        if current is not None:
            current.close(reason)

    @property
    def _owner(self) -> SocketEvents:
        assert self._events is not None, "it has been started"
        return self._events

    def _keep(self, frame: wire.Frame) -> None:
        self._kept.append(frame)
        self._kept_bytes += frame.num_bytes
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft().num_bytes

    def _interrupt(self) -> None:
        """Be without a FrameSocket; called with the lock."""
        if self._socket is not None:
            self._interrupted_at = time.monotonic()
            self._heard_at = self._interrupted_at - self._socket.silent_s
            self._sent_before, self._socket = self._sent - self._socket.num_waiting, None

    def _read(self, current: FrameSocket) -> None:
        current.start(
            SocketEvents(
                partial(self._take, current),
                partial(self._drop, current),
                partial(self._lost, current),
                partial(self._ready, current),
            )
        )

    def _take(self, source: FrameSocket, head: bytes, tail: bytearray) -> None:
        with self._lock:
            if source is not self._socket:
                return  # it is sent again by the connection that has taken the place
            self._received += 1
            self._untold_bytes += len(head) + len(tail)
            tells = self.resumes and self._untold_bytes >= TOLD_BYTES
            if tells:
                self._untold_bytes = 0
        self._owner.on_frame(head, tail)
        if tells:
            with contextlib.suppress(ConnectionError):
                self.send(wire.encode(Heartbeat(0, self._received)))

    def _drop(self, source: FrameSocket, num_bytes: int) -> None:
        with self._lock:
            if source is not self._socket:
                return
            self._received += 1
        self._owner.on_too_large(num_bytes)

    def _ready(self, source: FrameSocket) -> None:
        if source is self._socket:
            self._owner.on_ready()

    def _lost(self, source: FrameSocket, reason: str) -> None:
        with self._lock:
            if source is not self._socket:
                return
            resumes = self.resumes and not self._ended
            if resumes:
                self._interrupt()
            else:
                self._ended = self._ended or reason
        if resumes:
            self._on_interrupted()
        else:
            self._owner.on_closed(reason)
