"""The sending end of a link: one stream to one device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import grpc
import grpc.aio

from flowedge.core.errors import DeadlineError, DeviceLostError, DrainingError, ProtocolError
from flowedge.core.messages import Fault, Heartbeat, Message
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.pieces import in_pieces
from flowedge.net.deadline import within
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import MAX_TEXT
from flowedge.protocol.frame_error import FrameError
from flowedge.security.tls.channels import open_channel

SERVICE = "flowedge.v1.Pipeline"
PIPELINE_KEY = "flowedge-pipeline"  # metadata of the caller: id of the pipeline of the stream
DEVICE_KEY = "flowedge-device-bin"  # metadata of both sides: the name of the device, UTF-8
ROUTE_KEY = "flowedge-route"  # metadata of a last stage, towards the draft node: the number of its route

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"

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


@dataclass(frozen=True)
class LinkEvents:
    """The functions by which a link tells its owner of an event; called on the event loop."""

    on_message: Callable[[Message], None]
    on_lost: Callable[[DeviceLostError], None]  # called at most once, never after close()


class OutLink:
    """An open stream to a device, on a connection of its own.

    Attributes:
        peer: the name that the device gave when it accepted the stream.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: Call,
        peer: str,
        events: LinkEvents,
        settings: LinkSettings,
        kind: LinkKind,
        observer: LiveObserver,
    ) -> None:
        self.peer = peer
        self._label = kind.label
        self._observer = observer
        self._channel = channel
        self._call = call
        self._events = events
        self._settings = settings
        self._messages = asyncio.Lock()  # holds the pieces of a message together
        self._writing = asyncio.Lock()
        self._heard = time.monotonic()
        self._sending_since: float | None = None
        self._ended: DeviceLostError | None = None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

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
        channel = await open_channel(address, settings.channel_options, member=member)
        metadata = grpc.aio.Metadata(
            (PIPELINE_KEY, pipeline), (DEVICE_KEY, device.encode()), (ROUTE_KEY, str(route))
        )
        # Without a serialiser, frames stay bytes.
        call: Call = channel.stream_stream(f"/{SERVICE}/{kind.value}")(metadata=metadata)
        try:
            accepted = await within(settings.connect_s, call.initial_metadata(), "no answer")
            peer = _device_name(accepted)
            if peer is None:  # the call was refused; its status says why
                raise await _refusal(call, address, settings)
        except DeadlineError as error:
            await channel.close()
            raise DeviceLostError(address, str(error)) from error
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise from_status(error, address) from error
        except BaseException:
            await channel.close()
            raise
        return cls(channel, call, peer, events, settings, kind, observer)

    async def send(self, message: Message, departed: float = 0.0) -> int:
        """Send a message; return its size in bytes when the transport has taken it.

        Args:
            departed: when it was due to leave, for a receiver that emulates a device (see wire.encode).

        Raises:
            DeviceLostError: when the link is lost or closed before that.
        """
        data = wire.encode(message, departed)
        if isinstance(message, Heartbeat):  # which may pass between the pieces of another message
            await self._write(data)
        else:
            async with self._messages:
                for piece in in_pieces(data):
                    await self._write(piece)
        self._observer.sent(self._label, len(data))
        return len(data)

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            self._sending_since = time.monotonic()
            try:
                if self._ended is not None:
                    raise self._ended
                await self._call.write(data)
            except asyncio.CancelledError:
                # gRPC raises it also when the call was cancelled, and not this task.
                if self._ended is None:
                    raise
                raise self._ended from None
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
                self._lose(_reason(error))
                raise self._ended or DeviceLostError(self.peer, _reason(error)) from error
            finally:
                self._sending_since = None

    async def close(self) -> None:
        """End the stream and the connection. The owner is not told."""
        if self._ended is None:
            self._ended = DeviceLostError(self.peer, "the link was closed by this side")
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    async def _read(self) -> None:
        try:
            while True:
                data = await self._call.read()
                if not isinstance(data, bytes):  # end of the stream
                    self._lose("it closed the connection")
                    return
                self._heard = time.monotonic()
                self._observer.received(self._label, len(data))
                self._take(data)
        except grpc.aio.AioRpcError as error:
            told = from_status(error, self.peer)
            self._end(told if isinstance(told, DrainingError) else DeviceLostError(self.peer, _reason(error)))
        except asyncio.InvalidStateError as error:
            self._lose(_reason(error))

    def _take(self, data: bytes) -> None:
        try:
            message = wire.decode(data)
        except FrameError as error:
            _log.warning("%s sent a reply that cannot be read: %s", self.peer, error)
            if not error.session:
                return
            message = Fault(error.session, self.peer, ProtocolError.code, str(error))
        if not isinstance(message, Heartbeat):
            self._events.on_message(message)

    async def _beat(self) -> None:
        """Send heartbeats, and lose the link when the peer is silent or takes no data."""
        settings = self._settings
        sequence = 0
        while self._ended is None:
            await asyncio.sleep(settings.heartbeat_s)
            now = time.monotonic()
            if now - self._heard > settings.silence_s:
                self._lose(f"no sign of life for {settings.silence_s:g} s")
            elif self._sending_since is not None:
                if now - self._sending_since > settings.send_s:
                    self._lose(f"it took no data for {settings.send_s:g} s")
            else:
                sequence += 1
                await self._send_heartbeat(sequence)

    async def _send_heartbeat(self, sequence: int) -> None:
        # With a deadline, because a peer that stopped reading must not block `_beat`.
        sending = asyncio.ensure_future(self.send(Heartbeat(sequence)))
        try:
            done, _ = await asyncio.wait({sending}, timeout=self._settings.silence_s)
        except asyncio.CancelledError:
            # The link is being closed: the outcome of the sending is of no use any more.
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            raise
        if not done:
            self._lose(f"it took no heartbeat for {self._settings.silence_s:g} s")
        with contextlib.suppress(DeviceLostError):  # _lose has told the owner
            await sending

    def _lose(self, reason: str) -> None:
        self._end(DeviceLostError(self.peer, reason))

    def _end(self, error: DeviceLostError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self._call.cancel()
        self._events.on_lost(self._ended)


OpenLink: TypeAlias = Callable[[LinkEvents], Awaitable[OutLink]]
"""Opens a link whose address and settings the function knows; raises what OutLink.open raises."""


async def _refusal(call: Call, address: str, settings: LinkSettings) -> Exception:
    """Return the error of a call that ended without the agent's metadata."""
    try:
        await within(settings.connect_s, call.read(), "no status")
    except grpc.aio.AioRpcError as error:
        return from_status(error, address)
    return ProtocolError(f"{address} is not a FlowEdge agent")


def _device_name(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == DEVICE_KEY:
            return bytes(value).decode("utf-8", "replace")[:MAX_TEXT]
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"the connection failed: {error.details() or error.code().name}"
    return f"the connection failed: {error}"
