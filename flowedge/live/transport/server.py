"""The receiving end of links: streams that other devices have opened to this one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio

from flowedge.core.errors import AccessError, DeviceError, FlowEdgeError, ProtocolError
from flowedge.core.log_fields import about
from flowedge.core.log_rate import LogRate, more
from flowedge.core.messages import Fault, Heartbeat, Message
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.link import (
    DEVICE_KEY,
    PIPELINE_KEY,
    ROUTE_KEY,
    SERVICE,
    STREAM_METHODS,
    LinkKind,
)
from flowedge.live.transport.pieces import PieceJoiner
from flowedge.net.grpc_handlers import Context
from flowedge.net.grpc_status import abort
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import CONTROL_BYTES, MAX_TEXT
from flowedge.protocol.frame_error import FrameError
from flowedge.security.tls.caller_member import certified_member
from flowedge.security.tls.guard import certified_name

_log = logging.getLogger(__name__)


class InStream:
    """One stream from a peer.

    Attributes:
        route: the route whose last stage the peer says it is (see OutLink.open).
        member: URI in the peer's certificate (see Member.uri); None in plaintext.
        max_frame_bytes: most bytes of a frame; its owner may set it when it accepts the stream.
        replies: messages that wait to be sent back.
        ended: why this side ends the stream; None while it does not.
        error: the error that the peer is told when this side ends the stream; None for one that says `ended`.
        departed: when the latest message was due to leave its sender (see wire.encode).
    """

    def __init__(
        self, kind: LinkKind, peer: str, max_replies: int, route: int = 0, member: str | None = None
    ) -> None:
        self.kind = kind
        self.peer = peer
        self.route = route
        self.member = member
        self.max_frame_bytes = CONTROL_BYTES
        self.replies: asyncio.Queue[Message] = asyncio.Queue(max_replies)
        self.ended: str | None = None
        self.error: DeviceError | None = None
        self.departed = 0.0

    def end(self, reason: str, error: DeviceError | None = None) -> None:
        """Have the stream ended when the waiting replies have been sent; `error` is told to the peer."""
        if self.ended is None:
            self.ended, self.error = reason, error

    def reply(self, message: Message) -> None:
        """Have a message sent back, without waiting. The stream of a peer that reads no replies is ended."""
        try:
            self.replies.put_nowait(message)
        except asyncio.QueueFull:
            self.end("the other side reads no replies")


class StreamOwner(Protocol):
    """Takes the streams of one pipeline. Its methods are called on the event loop."""

    def opened(self, stream: InStream) -> None:
        """Accept a stream that a peer asks for, or refuse it by a FlowEdgeError."""

    def received(self, stream: InStream, message: Message) -> None:
        """Take in a message. Must not raise."""

    def malformed(self, stream: InStream, error: FrameError) -> None:
        """Take note of a frame that cannot be read; the peer has been sent a Fault already."""

    def closed(self, stream: InStream, reason: str) -> None:
        """Take note of the end of a stream."""


@dataclass(frozen=True)
class StreamServer:
    """The Pipeline service of one device.

    A frame that cannot be read is answered with a Fault for the session it names. It does not end the stream.

    Attributes:
        find: returns the owner of the streams of a pipeline, given by its id; raises a FlowEdgeError.
    """

    device: str
    find: Callable[[str], StreamOwner]
    settings: LinkSettings
    observer: LiveObserver = UNOBSERVED
    refusals: LogRate = field(default_factory=LogRate)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a grpc.aio server. It takes frames as bytes, so that bad frames reach it."""
        methods: dict[str, Any] = {
            kind.value: grpc.stream_stream_rpc_method_handler(self._serve(kind)) for kind in STREAM_METHODS
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _serve(self, kind: LinkKind) -> Callable[..., Any]:
        async def serve(_: AsyncIterator[bytes], context: Context) -> None:
            metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
            claimed = bytes(metadata.get(DEVICE_KEY) or b"unknown").decode("utf-8", "replace")
            peer = (certified_name(context) or claimed)[:MAX_TEXT]
            route = str(metadata.get(ROUTE_KEY) or "0")
            pipeline = str(metadata.get(PIPELINE_KEY) or "")
            stream = InStream(
                kind,
                peer,
                self.settings.max_replies,
                int(route) if route.isdecimal() and len(route) < 8 else -1,
                certified_member(context),
            )
            try:
                owner = self.find(pipeline)
                owner.opened(stream)
            except FlowEdgeError as error:
                self._log_refusal(stream, error)
                await abort(context, error)
            await self._run(stream, owner, context)

        return serve

    def _log_refusal(self, stream: InStream, error: FlowEdgeError) -> None:
        # A stage asks again and again while the next device is still loading.
        level = logging.WARNING if isinstance(error, AccessError) else logging.DEBUG
        silent = self.refusals.due((stream.peer, error.code))
        if silent is not None:
            fields = about(event="stream_refused", peer=stream.peer, lane=stream.kind.value, code=error.code)
            _log.log(
                level, "a stream of %s was refused: %s%s", stream.peer, error, more(silent), extra=fields
            )

    async def _run(self, stream: InStream, owner: StreamOwner, context: Context) -> None:
        reason = "the connection was closed"
        session = _Serving(self, stream, owner, context)
        tasks: list[asyncio.Task[str]] = []
        try:
            await context.send_initial_metadata(((DEVICE_KEY, self.device.encode()),))
            tasks = [asyncio.create_task(part) for part in (session.read(), session.write(), session.watch())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = next((task.result() for task in done if not task.cancelled()), reason)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            owner.closed(stream, reason)
        fields = about(event="stream_ended", peer=stream.peer, lane=stream.kind.value, reason=reason)
        _log.info("a stream has ended", extra=fields)
        if not context.done():
            await abort(context, stream.error or DeviceError(self.device, f"the stream was ended: {reason}"))


@dataclass
class _Serving:
    """The three tasks of an open stream. Each returns the reason for which the stream has ended."""

    server: StreamServer
    stream: InStream
    owner: StreamOwner
    context: Context
    heard: float = field(default_factory=time.monotonic)
    unreadable: int = 0
    joiner: PieceJoiner = field(default_factory=PieceJoiner)

    async def read(self) -> str:
        while True:
            data: object = await self.context.read()
            if not isinstance(data, bytes):
                return "the other side closed it"
            self.heard = time.monotonic()
            self.server.observer.received(self.stream.kind.label, len(data))
            try:
                message = self._read_message(data)
            except FrameError as error:
                self._log_unreadable(error)
                self.stream.reply(
                    Fault(error.session or "?", self.server.device, ProtocolError.code, str(error))
                )
                self.owner.malformed(self.stream, error)
                continue
            if message is not None and not isinstance(message, Heartbeat):
                self.owner.received(self.stream, message)

    def _read_message(self, data: bytes) -> Message | None:
        """Return the message that the bytes complete; None if more pieces of it are to come."""
        most = min(self.stream.max_frame_bytes, self.server.settings.max_message_bytes)
        frame = self.joiner.take(data, most)
        if frame is None:
            return None
        message, departed = wire.read(frame)
        if isinstance(message, Heartbeat):
            return message
        if self.joiner.waiting:
            self.joiner.drop()
            session = getattr(message, "session", "")
            raise FrameError(session, "a message came between the pieces of another")
        self.stream.departed = departed
        return message

    def _log_unreadable(self, error: FrameError) -> None:
        """Log the 1st, 10th, 100th frame and so on: a peer must not fill the log."""
        self.unreadable += 1
        if str(self.unreadable).strip("0") == "1":
            fields = about(event="frame_refused", peer=self.stream.peer, session=error.session)
            _log.warning(
                "a frame cannot be read, the stream's number %d: %s", self.unreadable, error, extra=fields
            )

    async def write(self) -> str:
        while True:
            message = await self.stream.replies.get()
            data = wire.encode(message)
            await self.context.write(data)
            self.server.observer.sent(self.stream.kind.label, len(data))

    async def watch(self) -> str:
        settings, express = self.server.settings, self.stream.kind is LinkKind.EXPRESS
        silence = settings.silence_s if express else settings.upstream_silence_s
        sequence = 0
        while self.stream.ended is None:
            await asyncio.sleep(settings.heartbeat_s)
            if time.monotonic() - self.heard > silence:
                return f"no sign of life for {silence:g} s"
            if self.stream.replies.empty():
                sequence += 1
                self.stream.reply(Heartbeat(sequence))
        await asyncio.sleep(settings.heartbeat_s)  # so that the waiting replies are sent
        return self.stream.ended
