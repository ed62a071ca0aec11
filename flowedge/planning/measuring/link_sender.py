"""Measures the link to another agent by sending it data, within limits that the other one has too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from flowedge.cluster.tls.channels import open_channel
from flowedge.core.errors import BadRequestError, DeviceLostError, ProtocolError
from flowedge.network.address import split_address
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import agent_pb2, agent_pb2_grpc, measure_pb2_grpc
from flowedge.v1 import measure_pb2 as pb

# Initial metadata of a call that is accepted. A sender waits for it, since writing to a call that is being
# refused can hide the reason.
ACCEPTED_KEY = "flowedge-accepted"


@dataclass(frozen=True)
class LinkLimits:
    """Sizes in bytes, times in seconds; sender and receiver have the same limits."""

    min_bytes: int = 1 << 18
    max_bytes: int = 1 << 28
    chunk_bytes: int = 1 << 17  # as large as a segment of 16 rows of a 7B model
    warm_up_share: int = 8  # 1/8 of the bytes is sent before the clock starts
    send_s: float = 10.0  # sending stops after this, on a link that is too slow for all bytes
    warm_up_s: float = 2.0  # the warm-up stops after this
    max_round_trips: int = 500
    probe_bytes: int = 64
    max_probe_bytes: int = 1024
    warm_up_round_trips: int = 10
    step_s: float = 10.0  # for a chunk to be taken, or a probe to come back
    total_s: float = 60.0  # for one call

    @property
    def most_received(self) -> int:
        """Bytes of the largest measurement and its warm-up, both rounded up to chunks."""
        return self.max_bytes + self.max_bytes // self.warm_up_share + 2 * self.chunk_bytes

    def check(self, num_bytes: int, round_trips: int) -> None:
        """Check the size of a measurement.

        Raises:
            BadRequestError: when it is too small or too large.
        """
        if not self.min_bytes <= num_bytes <= self.max_bytes:
            raise BadRequestError(
                f"a link is measured with {self.min_bytes} to {self.max_bytes} bytes, not {num_bytes}"
            )
        if not 1 <= round_trips <= self.max_round_trips:
            raise BadRequestError(
                f"a latency is measured with 1 to {self.max_round_trips} round trips, not {round_trips}"
            )


AT_ONCE = 5  # handshakes between two probes, by which the peer hears that the measuring goes on


@dataclass(frozen=True)
class LinkSender:
    """Measures the link to the agent at `peer`, whose id must be `peer_id`."""

    peer: str
    peer_id: str
    settings: LinkSettings
    limits: LinkLimits

    async def measure(self, num_bytes: int, round_trips: int) -> pb.MeasureLinkReply:
        """Measure round trips, then the rate.

        Raises:
            BadRequestError: when the peer is not an address, or another agent is there.
            DeviceLostError: when the peer cannot be reached.
            DeadlineError: when the peer does not answer in time.
            FlowEdgeError: the error with which the peer refuses.
        """
        split_address(self.peer)
        try:
            async with await open_channel(self.peer, self.settings.channel_options) as channel:
                await self._check_peer(channel)
                times = await self._round_trips(channel, round_trips)
                received = await self._send(channel, num_bytes)
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self.peer) from error
        if not received.bytes or received.seconds <= 0:
            raise ProtocolError(
                f"{self.peer} received nothing after the warm-up; the link is too slow to measure"
            )
        return pb.MeasureLinkReply(bytes=received.bytes, seconds=received.seconds, round_trips_s=times)

    async def _check_peer(self, channel: grpc.aio.Channel) -> None:
        """Only the agent that the caller means is sent data."""
        described = await agent_pb2_grpc.AgentStub(channel).Describe(
            agent_pb2.DescribeRequest(), timeout=self.settings.connect_s
        )
        if described.id != self.peer_id:
            raise BadRequestError(
                f"the agent at {self.peer} is {described.name}, not the device that was meant; was it "
                "started again, or does the address lead to another device?"
            )

    async def _accepted(self, call: Any, result: Callable[[], Awaitable[Any]]) -> None:
        """Wait until the peer accepts the call; `result()` waits for its result, or for its refusal."""
        metadata = await within(self.limits.step_s, call.initial_metadata(), f"{self.peer} did not answer")
        if ACCEPTED_KEY not in dict(metadata or ()):
            await within(self.limits.step_s, result(), f"{self.peer} did not say why it refuses")
            raise ProtocolError(f"{self.peer} is not a FlowEdge agent that measures links")

    async def _round_trips(self, channel: grpc.aio.Channel, count: int) -> list[float]:
        """Return the times of handshakes with the peer, which must agree to take part before."""
        limits = self.limits
        call = measure_pb2_grpc.MeasureStub(channel).Ping(timeout=limits.total_s)
        await self._accepted(call, call.read)
        probe = pb.Probe(data=bytes(limits.probe_bytes))
        times: list[float] = []
        while len(times) < limits.warm_up_round_trips + count:
            # The peer may have ended the call; reading tells why.
            with contextlib.suppress(asyncio.InvalidStateError):
                await within(limits.step_s, call.write(probe), f"{self.peer} took no probe")
            answer: Any = await within(limits.step_s, call.read(), f"{self.peer} sent no probe back")
            if not isinstance(answer, pb.Probe):
                raise DeviceLostError(self.peer, "it ended the round trips early")
            shaking = asyncio.to_thread(handshake_times, self.peer, AT_ONCE, limits.step_s)
            times += await within(limits.step_s, shaking, f"{self.peer} took no connections")
        await call.done_writing()
        await within(limits.step_s, call.read(), f"{self.peer} did not end the round trips")
        return times[limits.warm_up_round_trips :][:count]

    async def _send(self, channel: grpc.aio.Channel, num_bytes: int) -> pb.SinkReply:
        limits = self.limits
        call = measure_pb2_grpc.MeasureStub(channel).Sink(timeout=limits.total_s)
        await self._accepted(call, lambda: call)
        # The peer may have ended the call; its status says why.
        with contextlib.suppress(asyncio.InvalidStateError):
            await self._chunks(call, num_bytes // limits.warm_up_share, limits.warm_up_s, warm_up=True)
            await self._chunks(call, num_bytes, limits.send_s, warm_up=False)
            await call.done_writing()
        reply: pb.SinkReply = await within(limits.step_s, call, f"{self.peer} did not say what it received")
        return reply

    async def _chunks(self, call: Any, num_bytes: int, seconds: float, *, warm_up: bool) -> None:
        """Send bytes, rounded up to chunks, for at most `seconds`; at least one chunk is sent."""
        limits = self.limits
        chunk = pb.SinkChunk(data=bytes(limits.chunk_bytes), warm_up=warm_up)
        deadline = time.monotonic() + seconds
        for _ in range(max(1, -(-num_bytes // limits.chunk_bytes))):
            await within(limits.step_s, call.write(chunk), f"{self.peer} took no data")
            if time.monotonic() > deadline:
                return


def handshake_times(address: str, count: int, seconds: float) -> list[float]:
    """Return the seconds of `count` TCP handshakes with a device; waits for each of them.

    No software of the device takes part, other than what listens at the address.

    Args:
        seconds: how long a handshake may take.

    Raises:
        DeviceLostError: when a connection is not made.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)[0]
        return [_handshake(socket.socket(family, kind), place, seconds) for _ in range(count)]
    except OSError as error:
        raise DeviceLostError(address, f"no connection: {error}") from error


def _handshake(connecting: socket.socket, place: tuple[Any, ...], seconds: float) -> float:
    with connecting:
        connecting.settimeout(seconds)
        started = time.perf_counter()
        connecting.connect(place)
        return time.perf_counter() - started
