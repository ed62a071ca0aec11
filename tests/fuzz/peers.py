"""Peers that a fuzzed agent takes for the rest of its pipeline."""

# ruff: noqa: N802 (method names are gRPC's)

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc.aio

from flowedge.core.messages import MAX_FRAME_BYTES, Message, Open
from flowedge.live.transport.link import DEVICE_KEY, PIPELINE_KEY, SERVICE
from flowedge.live.transport.server import InStream, StreamServer
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.v1 import weights_pb2
from flowedge.v1.weights_pb2_grpc import WeightsServicer, add_WeightsServicer_to_server
from flowedge.version import PROTOCOL_VERSION

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
    server = grpc.aio.server(options=SETTINGS.channel_options)
    server.add_generic_rpc_handlers((StreamServer("fake", lambda _: peer, SETTINGS).handler(),))
    stage = stage or FakeStage()
    rpc.add_AgentServicer_to_server(stage, server)
    add_WeightsServicer_to_server(stage, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class RawStream:
    """A stream to an agent, of frames as bytes; `replies` are the messages that come back."""

    def __init__(self, address: str, method: str, pipeline: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=SETTINGS.channel_options)
        metadata = ((PIPELINE_KEY, pipeline), (DEVICE_KEY, b"fuzzer"))
        self._call: Any = self._channel.stream_stream(f"/{SERVICE}/{method}")(metadata=metadata)
        self._marks: dict[str, asyncio.Event] = {}
        self.faults = 0
        self._reader = asyncio.create_task(self._read())

    async def write(self, data: bytes) -> None:
        await self._call.write(data)

    async def answered(self, name: str, frame: Message, deadline_s: float) -> None:
        """Send what the agent has to answer with a Fault of session `name`, and wait for that.

        TimeoutError when it does not come; whatever else ends the stream is raised.
        """
        mark = self._marks[name] = asyncio.Event()
        await self.write(wire.encode(frame))
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
        self._call.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        while isinstance(data := await self._call.read(), bytes):
            session = getattr(wire.decode(data), "session", "")
            self.faults += 1
            if session in self._marks:
                self._marks.pop(session).set()


def mark(name: str, *, express: bool) -> Message:
    """A message that an agent answers with a Fault: of an unknown session, or on the wrong kind of link."""
    frame = wire.to_frame(Open(name, 1))
    if express:
        return Open(name, 1)
    frame.segment.session = name
    frame.segment.payload.dtype = 1
    frame.segment.payload.shape.append(0)
    return wire.from_frame(frame)
