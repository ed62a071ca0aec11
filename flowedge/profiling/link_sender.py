"""Measures the link to another agent by sending it data."""

from __future__ import annotations

import asyncio
import contextlib
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
from flowedge.profiling.handshakes import handshake_times
from flowedge.profiling.link_limits import ACCEPTED_KEY, LinkLimits
from flowedge.v1 import agent_pb2, agent_pb2_grpc, measure_pb2_grpc
from flowedge.v1 import measure_pb2 as pb

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
