"""Peers that a fuzzed agent takes for the rest of its pipeline."""

# ruff: noqa: N802 (method names are gRPC's)

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc.aio
import numpy as np

from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.core.messages import Message, Open, Segment
from flowedge.live.transport.server import InStream
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.v1 import weights_pb2
from flowedge.v1.weights_pb2_grpc import WeightsServicer, add_WeightsServicer_to_server
from flowedge.version import PROTOCOL_VERSION
from tests.support.links import RawLink, serving_streams

# Nobody is lost because the machine that runs the tests is busy.
DEADLINES = {"silence_s": 120.0, "upstream_silence_s": 120.0, "connect_s": 10.0}
MAX_REPLIES = 100_000


class PatientLink(LinkSettings):
    max_replies: ClassVar[int] = MAX_REPLIES


SETTINGS = PatientLink(**DEADLINES)


@dataclass
class Peer:
    """A stream owner of any pipeline: it takes what comes, and hands messages to `on_message`."""

    on_message: Callable[[InStream, Message], None] = lambda stream, message: None
    streams: list[InStream] = field(default_factory=list)

    def opened(self, stream: InStream) -> None:
        stream.max_frame_bytes = MAX_FRAME_BYTES
        self.streams.append(stream)

    def received(self, stream: InStream, message: Message) -> None:
        self.on_message(stream, message)

    def malformed(self, stream: InStream, error: wire.FrameError) -> None:
        raise AssertionError(f"an agent sent a frame that cannot be read: {error}")

    def closed(self, stream: InStream, reason: str) -> None: ...


class FakeStage(rpc.AgentServicer, WeightsServicer):
    """Takes the role of a stage, for which it needs no weights, and holds nothing."""

    def __init__(self) -> None:
        self.roles: list[pb.StageRole] = []

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.Device:
        return pb.Device(name="fake", protocol_version=PROTOCOL_VERSION, memory_available=1 << 40)

    async def BecomeStage(self, request: pb.StageRole, context: Any) -> AsyncIterator[pb.RoleProgress]:
        self.roles.append(request)
        yield pb.RoleProgress(device="fake", message="ready", ready=True)

    async def Look(self, request: weights_pb2.LookRequest, context: Any) -> weights_pb2.LookReply:
        return weights_pb2.LookReply(here=True)

    async def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:
        return pb.ReleaseReply()


@contextlib.asynccontextmanager
async def serving(peer: Peer, stage: FakeStage | None = None) -> AsyncIterator[str]:
    """The address at which a peer takes streams."""
    fake = stage or FakeStage()

    def add_services(server: grpc.aio.Server) -> None:
        rpc.add_AgentServicer_to_server(fake, server)
        add_WeightsServicer_to_server(fake, server)

    async with serving_streams("fake", lambda _: peer, SETTINGS, add_services=add_services) as address:
        yield address


class RawStream:
    """A stream to an agent, of frames as bytes; `replies` are the messages that come back."""

    def __init__(self, address: str, method: str, pipeline: str) -> None:
        self._link = RawLink(address, method, pipeline)
        self._opening = asyncio.create_task(self._link.open())
        self._marks: dict[str, asyncio.Event] = {}
        self.faults = 0
        self._reader = asyncio.create_task(self._read())

    async def write(self, data: bytes) -> None:
        await self._opening
        await self._link.write(data)

    async def answered(self, name: str, frame: Message, deadline_s: float) -> None:
        """Send what the agent has to answer with a Fault of session `name`, and wait for that.

        TimeoutError when it does not come; whatever else ends the stream is raised.
        """
        mark = self._marks[name] = asyncio.Event()
        await self.write(wire.to_bytes(frame))
        waiting = asyncio.ensure_future(mark.wait())
        done, _ = await asyncio.wait(
            {waiting, self._reader}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self._reader in done:
            waiting.cancel()
            self._reader.result()
            raise AssertionError("the agent ended the stream")
        if not done:
            raise TimeoutError(f"no answer to {name} within {deadline_s:g} s")

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await asyncio.gather(self._opening, return_exceptions=True)
        await self._link.close()

    async def _read(self) -> None:
        await self._opening
        while True:
            session = getattr(await self._link.read(), "session", "")
            self.faults += 1
            if session in self._marks:
                self._marks.pop(session).set()


def mark(name: str, *, express: bool) -> Message:
    """A message that an agent answers with a Fault: of an unknown session, or on the wrong kind of link."""
    if express:
        return Open(name, 1)
    none = np.zeros(0, np.int64)
    return Segment(name, 0, 0, False, 0, none, none, np.zeros(0, np.int32))
