"""The sending end of a link: one stream of frames to one device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import grpc
import grpc.aio

from flowedge.core.errors import (
    DeadlineError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.messages import Fault, Heartbeat, Message
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.connecting import connect
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.net.address import join_address, split_address
from flowedge.net.deadline import within
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import CONTROL_BYTES, MAX_TEXT
from flowedge.protocol.frame_error import FrameError
from flowedge.security.process import security_for
from flowedge.security.tls.channels import open_verified
from flowedge.v1 import pipeline_pb2 as pb

SERVICE = "flowedge.v1.Pipeline"
TELL_S = 0.5  # for the call that opened a link to say why its connection was closed

Call: TypeAlias = "grpc.aio.UnaryStreamCall[Any, pb.LinkOffer]"

_log = logging.getLogger(__name__)


class LinkKind(str, Enum):
    """The ways by which a message reaches a device."""

    IN_BAND = "InBand"  # from the device before it in the pipeline
    EXPRESS = "Express"  # from the draft node
    REPLY = "Reply"  # back from the device after it, such as a credit

    @property
    def label(self) -> str:
        return self.name.lower()


STREAM_METHODS = (LinkKind.IN_BAND, LinkKind.EXPRESS)  # their values are the Pipeline service's methods


def _no_op() -> None:
    return


@dataclass(frozen=True)
class LinkEvents:
    """The functions by which a link tells its owner of an event.

    Attributes:
        on_message: called in the link thread.
        on_lost: called on the event loop, at most once, never after close().
        on_ready: called in the link thread when frames that had to wait have been written.
    """

    on_message: Callable[[Message], None]
    on_lost: Callable[[DeviceLostError], None]
    on_ready: Callable[[], None] = _no_op


class OutLink:
    """An open stream to a device, on a connection of its own.

    The call of gRPC that opened the link lasts as long as the link. By it the other device checks who calls,
    and tells why it ends the link.

    Attributes:
        peer: the name that the device gave when it accepted the stream.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: Call,
        connection: FrameSocket,
        peer: str,
        events: LinkEvents,
        settings: LinkSettings,
        kind: LinkKind,
        observer: LiveObserver,
    ) -> None:
        self.peer = peer
        self._sent, self._received = observer.of_link(kind.label)
        self._channel = channel
        self._call = call
        self._connection = connection
        self._events = events
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._broken = asyncio.Event()
        self._broken_reason = ""
        self._ended: DeviceLostError | None = None
        connection.start(SocketEvents(self._take, self._too_large, self._on_closed, self._events.on_ready))
        self._tasks = [asyncio.create_task(self._await_end()), asyncio.create_task(self._beat())]

    @classmethod
    async def open(
        cls,
        address: str,
        kind: LinkKind,
        *,
        pipeline: str,
        device: str,
        events: LinkEvents,
        settings: LinkSettings,
        route: int = 0,
        member: str | None = None,
        observer: LiveObserver = UNOBSERVED,
    ) -> OutLink:
        """Connect to `address` as the device named `device`.

        Args:
            pipeline: id of the pipeline that the stream is for.
            route: the route whose last stage this device is; only the draft node reads it.
            member: URI that the peer's certificate must have, if it is known (see Member.uri).

        Raises:
            AccessError: when another member answers there.
            DeviceLostError: when nobody answers within `connect_s`.
            FlowEdgeError: the error by which the other side refuses the stream.
        """
        security = security_for(address, None)
        channel, verified = await open_verified(address, settings.channel_options, None, security, member)
        try:
            # Without a stub, as the two methods differ in their name only.
            call: Call = channel.unary_stream(
                f"/{SERVICE}/{kind.value}",
                request_serializer=pb.LinkRequest.SerializeToString,
                response_deserializer=pb.LinkOffer.FromString,
            )(pb.LinkRequest(pipeline=pipeline, device=device, route=route))
            offer = await within(settings.connect_s, _first_of(call), "no answer")
            if offer is None:
                raise ProtocolError(f"{address} is not a FlowEdge agent")
            uri = None if verified is None else verified.holder.member.uri
            made = connect(split_address(address)[0], offer.port, offer.token, security.store, uri)
            connected = await _made(made, address, offer.port, call, settings.connect_s)
        except DeadlineError as error:
            await channel.close()
            raise DeviceLostError(address, str(error)) from error
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise from_status(error, address) from error
        except BaseException:
            await channel.close()
            raise
        connection = FrameSocket(connected, CONTROL_BYTES)
        peer = offer.device[:MAX_TEXT]
        return cls(channel, call, connection, peer, events, settings, kind, observer)

    @property
    def ready(self) -> bool:
        """Whether a message would be written at once; if it is not, `on_ready` is called when it is."""
        return not self._connection.blocked

    @property
    def num_waiting(self) -> int:
        """Messages that the kernel has not taken yet."""
        return self._connection.num_waiting

    def send(self, message: Message, departed: float = 0.0) -> int:
        """Send a message without waiting; return its size in bytes. May be called in any thread.

        Args:
            departed: when it was due to leave, for a receiver that emulates a device (see wire.encode).

        Raises:
            DeviceLostError: when the link is lost or closed.
        """
        frame = wire.encode(message, departed)
        return self.send_frame(frame)

    def send_frame(self, frame: wire.Frame) -> int:
        """Send a message that is encoded already; see `send`."""
        try:
            self._connection.send(frame)
        except ConnectionError as error:
            raise self._ended or DeviceLostError(self.peer, str(error)) from error
        self._sent(frame.num_bytes)
        return frame.num_bytes

    async def close(self) -> None:
        """End the stream and the connection. The owner is not told."""
        if self._ended is None:
            self._ended = DeviceLostError(self.peer, "the link was closed by this side")
        for task in self._tasks:
            task.cancel()
        self._connection.close(self._ended.reason)
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def _on_closed(self, reason: str) -> None:
        def tell() -> None:
            self._broken_reason = reason
            self._broken.set()

        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(tell)

    def _take(self, head: bytes, tail: bytearray) -> None:
        self._received(len(head) + len(tail))
        try:
            message, _ = wire.read(head, tail)
        except FrameError as error:
            _log.warning("%s sent a reply that cannot be read: %s", self.peer, error)
            if not error.session:
                return
            message = Fault(error.session, self.peer, ProtocolError.code, str(error))
        if not isinstance(message, Heartbeat):
            self._events.on_message(message)

    def _too_large(self, num_bytes: int) -> None:
        _log.warning("%s sent a reply of %d bytes; at most %d are read", self.peer, num_bytes, CONTROL_BYTES)

    async def _await_end(self) -> None:
        """Wait for the end of the call or of the connection, and tell the owner why it has ended."""
        ending = asyncio.ensure_future(_end_of(self._call, self.peer))
        broken = asyncio.ensure_future(self._broken.wait())
        try:
            await asyncio.wait({ending, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():  # it may be about to say why
                await asyncio.wait({ending}, timeout=TELL_S)
            if ending.done():
                told = ending.result()
                self._end(told if isinstance(told, DeviceLostError) else self._failed(told))
            else:
                self._lose(self._broken_reason)
        finally:
            ending.cancel()
            broken.cancel()
            await asyncio.gather(ending, broken, return_exceptions=True)

    async def _beat(self) -> None:
        """Send heartbeats, and lose the link when the peer is silent or takes no data."""
        settings, connection = self._settings, self._connection
        sequence = 0
        while self._ended is None:
            await asyncio.sleep(settings.heartbeat_s)
            if connection.silent_s > settings.silence_s:
                self._lose(f"no sign of life for {settings.silence_s:g} s")
            elif connection.blocked_s > settings.send_s:
                self._lose(f"it took no data for {settings.send_s:g} s")
            elif self.ready:
                sequence += 1
                with contextlib.suppress(DeviceLostError):  # `_await_end` tells the owner
                    self.send(Heartbeat(sequence))

    def _failed(self, told: FlowEdgeError) -> DeviceLostError:
        return DeviceLostError(self.peer, f"the connection failed: {told}")

    def _lose(self, reason: str) -> None:
        self._end(DeviceLostError(self.peer, reason))

    def _end(self, error: DeviceLostError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self._connection.close(error.reason)
        self._call.cancel()
        self._events.on_lost(error)


OpenLink: TypeAlias = Callable[[LinkEvents], Awaitable[OutLink]]
"""Opens a link whose address and settings the function knows; raises what OutLink.open raises."""


async def _first_of(call: Call) -> pb.LinkOffer | None:
    offer = await call.read()
    return offer if isinstance(offer, pb.LinkOffer) else None


async def _made(
    made: Awaitable[socket.socket], address: str, port: int, call: Call, seconds: float
) -> socket.socket:
    """Return the connection of a link. If it cannot be made, the call may say why."""
    there = join_address(split_address(address)[0], port)
    try:
        return await within(seconds, made, f"no connection to {there}, the port of its links,")
    except (OSError, DeadlineError) as error:
        with contextlib.suppress(DeadlineError):
            ended = await within(TELL_S, _end_of(call, address), "no reason")
            if not isinstance(ended, DeviceLostError):
                raise ended from error
        if isinstance(error, DeadlineError):
            text = f"{error}; a firewall may be between: open that port (agent.links_port)"
            raise DeviceLostError(address, text) from error
        raise DeviceLostError(address, f"the connection to {there} failed: {error}") from error


async def _end_of(call: Call, peer: str) -> FlowEdgeError:
    """Wait for the end of the call that opened a link; return the error that tells of it."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        told = from_status(error, peer)
        if isinstance(told, DrainingError) or not isinstance(told, DeviceLostError):
            return told
        return DeviceLostError(peer, f"the connection failed: {error.details() or error.code().name}")
    except asyncio.InvalidStateError as error:
        return DeviceLostError(peer, f"the connection failed: {error}")
    return DeviceLostError(peer, "it closed the connection")
