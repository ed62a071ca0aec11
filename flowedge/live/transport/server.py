"""The receiving end of links: streams that other devices have opened to this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio

from flowedge.cluster.tls.guard import certified_member, certified_name
from flowedge.core.errors import AccessError, DeviceError, DeviceLostError, FlowEdgeError, ProtocolError
from flowedge.core.log_fields import about
from flowedge.core.messages import Fault, Heartbeat, Message
from flowedge.live.observer import UNOBSERVED, LiveObserver, ignore_bytes
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.live.transport.link import SERVICE, STREAM_METHODS
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.transport.listener import LinkListener
from flowedge.network.grpc_handlers import Context
from flowedge.network.grpc_status import abort
from flowedge.network.link_settings import LinkSettings
from flowedge.network.log_rate import LogRate, more
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import CONTROL_BYTES, MAX_TEXT, FrameError
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import pipeline_pb2 as pb

_log = logging.getLogger(__name__)


class InStream:
    """One stream from a peer.

    Attributes:
        route: the route whose last stage the peer says it is (see OutLink.open).
        member: URI in the peer's certificate (see Member.uri); None in plaintext.
        max_frame_bytes: most bytes of a frame; its owner may set it when it accepts the stream.
        ended: why this side ends the stream; None while it does not.
        error: the error that the peer is told when this side ends the stream; None for one that says `ended`.
        departed: when the latest message was due to leave its sender (see wire.read).
    """

    def __init__(
        self, kind: LinkKind, peer: str, max_replies: int, route: int = 0, member: str | None = None
    ) -> None:
        self.kind = kind
        self.peer = peer
        self.route = route
        self.member = member
        self.max_frame_bytes = CONTROL_BYTES
        self.ended: str | None = None
        self.error: DeviceError | None = None
        self.departed = 0.0
        self._max_replies = max_replies
        self._lock = threading.Lock()
        self._early: list[Message] = []  # replies before the connection was made
        self._connection: LinkConnection | None = None
        self._sent: Callable[[int], None] = ignore_bytes

    def attach(self, connection: LinkConnection, sent: Callable[[int], None]) -> None:
        """Send replies by a connection from now on.

        sent: is told of the bytes of each reply.
        """
        with self._lock:
            self._connection, self._sent = connection, sent
        for message in self._early:
            self.reply(message)

    @property
    def silent_s(self) -> float:
        """The seconds for which the peer has given no sign of life; 0 before the connection is made."""
        connection = self._connection
        return 0.0 if connection is None else connection.silent_s

    def end(self, reason: str, error: DeviceError | None = None) -> None:
        """Have the stream ended when the waiting replies have been sent; `error` is told to the peer."""
        if self.ended is None:
            self.ended, self.error = reason, error

    def reply(self, message: Message) -> None:
        """Send a message back, without waiting. The stream of a peer that reads no replies is ended.

        May be called in any thread. A reply on a stream that has ended is dropped.
        """
        with self._lock:
            connection = self._connection
            if connection is None:
                self._early.append(message)
        waiting = len(self._early) if connection is None else connection.num_waiting
        if waiting > self._max_replies:
            self.end("the other side reads no replies")
            return
        if connection is None:
            return
        frame = wire.encode(message)
        with contextlib.suppress(ConnectionError):
            connection.send(frame)
            self._sent(frame.num_bytes)


class StreamOwner(Protocol):
    """Takes the streams of one pipeline.

    `opened` and `closed` are called on the event loop, `received` and `malformed` in the link thread.
    """

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
        listener: where the connections of streams are made.
        find: returns the owner of the streams of a pipeline, given by its id: of its stage if that is meant,
            not the draft node; raises a FlowEdgeError.
    """

    device: str
    find: Callable[[str, bool], StreamOwner]
    settings: LinkSettings
    listener: LinkListener
    observer: LiveObserver = UNOBSERVED
    refusals: LogRate = field(default_factory=LogRate)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a grpc.aio server."""
        methods: dict[str, Any] = {
            kind.value: grpc.unary_stream_rpc_method_handler(
                self._serve(kind),
                request_deserializer=pb.LinkRequest.FromString,
                response_serializer=pb.LinkOffer.SerializeToString,
            )
            for kind in STREAM_METHODS
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _serve(self, kind: LinkKind) -> Callable[..., Any]:
        async def serve(request: pb.LinkRequest, context: Context) -> AsyncIterator[pb.LinkOffer]:
            peer = (certified_name(context) or request.device or "unknown")[:MAX_TEXT]
            member = certified_member(context)
            stream = InStream(kind, peer, self.settings.max_replies, request.route, member)
            try:
                owner = self.find(request.pipeline, request.to_stage)
                owner.opened(stream)
            except FlowEdgeError as error:
                self._log_refusal(stream, error)
                await abort(context, error)
            reason = "the connection was closed"
            serving: _Serving | None = None
            try:
                with self.listener.resuming(member) as resumed:
                    async with self.listener.offering(member) as offered:
                        yield pb.LinkOffer(
                            device=self.device,
                            port=self.listener.port,
                            token=offered.token,
                            resume_token=resumed.token,
                        )
                        connected = await offered.connected(self.settings.connect_s)
                    most = min(stream.max_frame_bytes, self.settings.max_message_bytes)
                    resumed.link = LinkConnection(FrameSocket(connected, most), resumes=request.resumes)
                    serving = _Serving(self, stream, owner, resumed.link)
                    reason = await serving.run()
            except DeviceLostError as error:
                reason = error.reason
            finally:
                if serving is not None:
                    serving.connection.close()
                owner.closed(stream, reason)
            fields = about(event="stream_ended", peer=stream.peer, lane=stream.kind.value, reason=reason)
            _log.info("a stream has ended", extra=fields)
            if not context.done():
                ended = DeviceError(self.device, f"the stream was ended: {reason}")
                await abort(context, stream.error or ended)

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


class _Serving:
    """An open stream at work: reading in the link thread, the watch over it on the event loop."""

    def __init__(
        self, server: StreamServer, stream: InStream, owner: StreamOwner, connection: LinkConnection
    ) -> None:
        self.connection = connection
        self._server = server
        self._stream = stream
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[str] = self._loop.create_future()
        self._unreadable = 0
        sent, self._received = server.observer.of_link(stream.kind.label)
        stream.attach(connection, sent)

    async def run(self) -> str:
        """Serve the stream until it ends; return the reason."""
        self.connection.start(SocketEvents(self._take, self._too_large, self._on_closed, _no_op))
        watching = asyncio.ensure_future(self._watch())
        try:
            done, _ = await asyncio.wait({watching, self._closed}, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _take(self, head: bytes, tail: bytearray) -> None:
        self._received(len(head) + len(tail))
        try:
            message, self._stream.departed = wire.read(head, tail)
        except FrameError as error:
            self._refuse(error)
            return
        if isinstance(message, Heartbeat):
            self.connection.acknowledge(message.received)
        else:
            self._owner.received(self._stream, message)

    def _too_large(self, num_bytes: int) -> None:
        most = self.connection.max_frame_bytes
        self._refuse(FrameError("", f"a frame of {num_bytes} bytes; at most {most} are allowed"))

    def _refuse(self, error: FrameError) -> None:
        self._log_unreadable(error)
        self._stream.reply(Fault(error.session or "?", self._server.device, ProtocolError.code, str(error)))
        self._owner.malformed(self._stream, error)

    def _log_unreadable(self, error: FrameError) -> None:
        """Log the 1st, 10th, 100th frame and so on: a peer must not fill the log."""
        self._unreadable += 1
        if str(self._unreadable).strip("0") == "1":
            fields = about(event="frame_refused", peer=self._stream.peer, session=error.session)
            _log.warning(
                "a frame cannot be read, the stream's number %d: %s", self._unreadable, error, extra=fields
            )

    def _on_closed(self, reason: str) -> None:
        def report() -> None:
            if not self._closed.done():
                self._closed.set_result(reason)

        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(report)

    async def _watch(self) -> str:
        """Send heartbeats until the peer is silent, or this side ends the stream; return the reason."""
        stream, settings, connection = self._stream, self._server.settings, self.connection
        express = stream.kind is LinkKind.EXPRESS
        silence = settings.silence_s if express else settings.upstream_silence_s
        sequence = 0
        while stream.ended is None:
            await asyncio.sleep(settings.heartbeat_s)
            if connection.silent_s > silence:
                return f"no sign of life for {silence:g} s"
            if not connection.num_waiting:
                sequence += 1
                stream.reply(Heartbeat(sequence, connection.received))
        await asyncio.sleep(settings.heartbeat_s)  # so that the waiting replies are sent
        return stream.ended


def _no_op() -> None:
    return
