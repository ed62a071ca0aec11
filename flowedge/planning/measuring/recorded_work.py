"""Connections over loopback between drivers, and a record of what a driver does, and when."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from flowedge.core.messages import Heartbeat, Message, Segment
from flowedge.live.compute_thread import Span
from flowedge.live.observer import LiveObserver
from flowedge.live.transport.frame_socket import SocketEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.transport.server import InStream, StreamOwner
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind

_MOST_REPLIES = 1 << 16


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        while True:
            far, address = listening.accept()
            if address == near.getsockname():
                return near, far
            far.close()  # of another program


def serve_stream(owner: StreamOwner, kind: LinkKind, peer: str, connected: socket.socket) -> LinkConnection:
    """Have a driver take what comes on a connection, as a stream of `peer`; called on its event loop."""
    stream = InStream(kind, peer, _MOST_REPLIES)
    owner.opened(stream)
    receiving = LinkConnection.over(connected, stream.max_frame_bytes)
    stream.attach(receiving, lambda _: None)

    def take(head: bytes, tail: bytearray) -> None:
        message, stream.departed = wire.read(head, tail)
        if not isinstance(message, Heartbeat):
            owner.received(stream, message)

    receiving.start(SocketEvents(take, lambda _: None, lambda _: None, lambda: None))
    return receiving


class RecordedJob(NamedTuple):
    """A job that was run; times in seconds of time.monotonic().

    Attributes:
        activity: a word of engine/activity.py.
        concluded: when everything that follows from the job was done, so that the next job could begin.
    """

    activity: str
    start: float
    end: float
    concluded: float


class RecordedSegment(NamedTuple):
    """A segment with rows that was sent: its rows, and when it had been written."""

    rows: int
    written: float


class RecordedWork(LiveObserver):
    """A record of what a driver does.

    Attributes:
        jobs, segments: in the order in which they ended.
    """

    def __init__(self) -> None:
        self.jobs: list[RecordedJob] = []
        self.segments: list[RecordedSegment] = []

    def computed(self, activity: str, span: Span, rows: int) -> None:  # noqa: ARG002
        self.jobs.append(RecordedJob(activity, *span, time.monotonic()))

    def transferred(self, message: Message, span: Span) -> None:
        if isinstance(message, Segment) and message.num_rows:
            self.segments.append(RecordedSegment(message.num_rows, span.end))
