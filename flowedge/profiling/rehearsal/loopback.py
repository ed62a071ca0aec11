"""Links over loopback between drivers: connections as the product uses them, without its servers."""

from __future__ import annotations

import socket

from flowedge.core.messages import Heartbeat
from flowedge.live.transport.frame_link import LinkKind
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.live.transport.server import InStream, StreamOwner
from flowedge.protocol import wire

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


def serve_stream(owner: StreamOwner, kind: LinkKind, peer: str, connected: socket.socket) -> FrameSocket:
    """Have a driver take what comes on a connection, as a stream of `peer`; called on its event loop."""
    stream = InStream(kind, peer, _MOST_REPLIES)
    owner.opened(stream)
    receiving = FrameSocket(connected, stream.max_frame_bytes)
    stream.attach(receiving, lambda _: None)

    def take(head: bytes, tail: bytearray) -> None:
        message, stream.departed = wire.read(head, tail)
        if not isinstance(message, Heartbeat):
            owner.received(stream, message)

    receiving.start(SocketEvents(take, lambda _: None, lambda _: None, lambda: None))
    return receiving
