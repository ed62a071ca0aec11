"""The time of one hop: a segment from one process's memory to another's over loopback TCP."""

from __future__ import annotations

import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.core.messages import Heartbeat, Message, Segment
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.protocol import wire

MOST_BYTES = 2 * MAX_FRAME_BYTES
_START_TIMEOUT_S = 60.0
_LIFE_S = 600.0  # of the receiving process


@dataclass(frozen=True)
class HopTimes:
    """The seconds of each hop, from before a segment is serialised until the receiver has it as an object."""

    seconds: np.ndarray[Any, np.dtype[np.float64]]
    frame_bytes: int

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


def measure_hop(rows: int, width: int, hops: int, warm_up: int = 20) -> HopTimes:
    """Send segments of [rows, width] float16 to another process, one after the other, and time each."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive_forever, args=(theirs,), daemon=True)
    receiver.start()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise TimeoutError(f"the receiving process did not start within {_START_TIMEOUT_S:g} s")
        segment = _segment(rows, width)
        times = _send(ours.recv(), segment, warm_up + hops)
    finally:
        receiver.terminate()
        receiver.join(5)
    return HopTimes(np.array(times[warm_up:]), wire.encode(segment).num_bytes)


def _segment(rows: int, width: int) -> Segment:
    first = 1000
    return Segment(
        session="overhead",
        number=1,
        epoch=1,
        committed=False,
        first_row=first,
        positions=np.arange(first, first + rows, dtype=np.int64),
        parents=np.arange(first - 1, first + rows - 1, dtype=np.int64),
        payload=np.random.default_rng(0).standard_normal((rows, width)).astype(np.float16),
    )


def _send(port: int, segment: Segment, hops: int) -> list[float]:
    answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
    link = FrameSocket(socket.create_connection(("127.0.0.1", port)), MOST_BYTES)
    link.start(_events(answers.put))
    times = []
    for _ in range(hops):
        started = time.monotonic_ns()
        link.send(wire.encode(segment))
        reply = answers.get(timeout=30)
        assert isinstance(reply, Heartbeat)
        times.append((reply.sequence - started) * 1e-9)
    link.close()
    return times


def _receive_forever(parent: Connection) -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        parent.send(listening.getsockname()[1])
        link = FrameSocket(listening.accept()[0], MOST_BYTES)

    def take(message: Message) -> None:
        assert isinstance(message, Segment)
        # The monotonic clock is the machine's: both processes read the same one.
        link.send(wire.encode(Heartbeat(time.monotonic_ns())))

    link.start(_events(take, ended.set))
    ended.wait(_LIFE_S)


def _events(take: Callable[[Message], None], ended: Callable[[], None] = lambda: None) -> SocketEvents:
    return SocketEvents(
        on_frame=lambda head, tail: take(wire.read(head, tail)[0]),
        on_too_large=lambda _: None,
        on_closed=lambda _: ended(),
        on_ready=lambda: None,
    )
