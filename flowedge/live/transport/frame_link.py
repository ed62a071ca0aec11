"""Messages over one connection to another device, for the side that sends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from flowedge.core.errors import DeviceLostError, ProtocolError
from flowedge.core.messages import Fault, Heartbeat, Message
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.frame_socket import SocketEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import CONTROL_BYTES, FrameError
from flowedge.protocol.link_kind import LinkKind

_log = logging.getLogger(__name__)


def _no_op() -> None:
    return


@dataclass(frozen=True)
class LinkEvents:
    """The functions by which a link tells its owner of an event.

    Attributes:
        on_message: called in the link thread.
        on_lost: called on the event loop, at most once, never after close().
        on_ready: called in the link thread when frames that had to wait have been written.
    """

    on_message: Callable[[Message], None]
    on_lost: Callable[[DeviceLostError], None]
    on_ready: Callable[[], None] = _no_op


class FrameLink:
    """A connection to a device that takes messages and may send some back.

    Attributes:
        peer: the name of the device.
    """

    def __init__(
        self,
        connection: LinkConnection,
        peer: str,
        events: LinkEvents,
        kind: LinkKind,
        observer: LiveObserver = UNOBSERVED,
    ) -> None:
        """Begin to read the connection, which becomes the link's."""
        self.peer = peer
        self._sent, self._received = observer.of_link(kind.label)
        self._connection = connection
        self._events = events
        self._ended: DeviceLostError | None = None
        connection.start(SocketEvents(self._take, self._too_large, self._on_closed, events.on_ready))

    @property
    def ready(self) -> bool:
        """Whether a message would be written at once; if it is not, `on_ready` is called when it is."""
        return not self._connection.blocked

    @property
    def num_waiting(self) -> int:
        """Messages that the kernel has not taken yet."""
        return self._connection.num_waiting

    def send(self, message: Message) -> int:
        """Send a message without waiting; return its size in bytes. May be called in any thread.

        Raises:
            DeviceLostError: when the link is lost or closed.
        """
        return self.send_frame(wire.encode(message))

    def send_frame(self, frame: wire.Frame) -> int:
        """Send a message that is encoded already; see `send`."""
        try:
            self._connection.send(frame)
        except ConnectionError as error:
            raise self._ended or DeviceLostError(self.peer, str(error)) from error
        self._sent(frame.num_bytes)
        return frame.num_bytes

    async def close(self) -> None:
        """End the connection. The owner is not told."""
        self._connection.close()

    def _on_closed(self, reason: str) -> None:
        """Take note of the end of the connection; called in the link thread."""

    def _take(self, head: bytes, tail: bytearray) -> None:
        self._received(len(head) + len(tail))
        try:
            message, _ = wire.read(head, tail)
        except FrameError as error:
            _log.warning("%s sent a reply that cannot be read: %s", self.peer, error)
            if not error.session:
                return
            message = Fault(error.session, self.peer, ProtocolError.code, str(error))
        if isinstance(message, Heartbeat):
            self._connection.acknowledge(message.received)
        else:
            self._events.on_message(message)

    def _too_large(self, num_bytes: int) -> None:
        _log.warning("%s sent a reply of %d bytes; at most %d are read", self.peer, num_bytes, CONTROL_BYTES)


OpenLink: TypeAlias = Callable[[LinkEvents], Awaitable[FrameLink]]
"""Opens a link whose address and settings the function knows; raises what OutLink.open raises."""
