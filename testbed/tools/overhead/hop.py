"""The time of one hop: a segment from one process's memory to another's over loopback gRPC."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio
import numpy as np

from flowedge.core.messages import Heartbeat, Segment
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire

_METHOD = "/flowedge.overhead.Hop/Send"
_START_TIMEOUT_S = 60.0


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
        times = asyncio.run(_send(ours.recv(), segment, warm_up + hops))
    finally:
        receiver.terminate()
        receiver.join(5)
    return HopTimes(np.array(times[warm_up:]), len(wire.encode(segment)))


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


async def _send(port: int, segment: Segment, hops: int) -> list[float]:
    times = []
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=LinkSettings().channel_options
    ) as channel:
        call: Any = channel.stream_stream(_METHOD)()
        for _ in range(hops):
            started = time.monotonic_ns()
            await call.write(wire.encode(segment))
            reply = wire.decode(await asyncio.wait_for(call.read(), 30))
            assert isinstance(reply, Heartbeat)
            times.append((reply.sequence - started) * 1e-9)
        await call.done_writing()
    return times


def _receive_forever(parent: Connection) -> None:
    asyncio.run(_receive(parent))


async def _receive(parent: Connection) -> None:
    async def take(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for data in requests:
            segment = wire.decode(data)
            assert isinstance(segment, Segment)
            # The monotonic clock is the machine's: both processes read the same one.
            yield wire.encode(Heartbeat(time.monotonic_ns()))

    server = grpc.aio.server(options=LinkSettings().channel_options)
    service, method = _METHOD.strip("/").split("/")
    handler = grpc.method_handlers_generic_handler(
        service, {method: grpc.stream_stream_rpc_method_handler(take)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parent.send(port)
    await server.wait_for_termination()
