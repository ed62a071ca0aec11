"""The sending end of a link: one stream of frames to one device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio

from flowedge.cluster.process import security_for
from flowedge.cluster.tls.channels import open_verified
from flowedge.core.errors import (
    DeadlineError,
    DeviceLostError,
    DrainingError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.log_fields import about
from flowedge.core.messages import Heartbeat
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.connecting import connect, open_to
from flowedge.live.transport.frame_link import FrameLink, LinkEvents
from flowedge.live.transport.frame_socket import FrameSocket
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.transport.redial import Redial
from flowedge.network.address import join_address, split_address
from flowedge.network.connection_failure import why_of_grpc, why_of_socket
from flowedge.network.deadline import set_within, within
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol.frame_bounds import CONTROL_BYTES, MAX_TEXT
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import pipeline_pb2 as pb

DOUBTFUL = 0.4  # of silence_s without a sign of life, after which another connection is tried
REDIAL_S = 0.25  # between two attempts at that
GRACE_S = 0.1  # after the end of a connection, for the call that opened the link to say why it was ended

SERVICE = "flowedge.v1.Pipeline"
TELL_S = 0.5  # for the call that opened a link to say why its connection was closed

_log = logging.getLogger(__name__)

Call: TypeAlias = "grpc.aio.UnaryStreamCall[Any, pb.LinkOffer]"

STREAM_METHODS = (LinkKind.IN_BAND, LinkKind.EXPRESS)  # their values are the Pipeline service's methods


class OutLink(FrameLink):
    """An open stream to a device, on a connection of its own.

    The call of gRPC that opened the link lasts as long as the link. By it the other device checks who calls,
    and tells why it ends the link.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        call: Call,
        connected: socket.socket,
        redial: Redial,
        peer: str,
        events: LinkEvents,
        settings: LinkSettings,
        kind: LinkKind,
        observer: LiveObserver,
    ) -> None:
        self._channel: grpc.aio.Channel | None = channel
        self._call: Call | None = call
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._broken = asyncio.Event()
        self._broken_reason = ""
        self._interrupted = asyncio.Event()
        connection = LinkConnection(
            FrameSocket(connected, CONTROL_BYTES),
            resumes=bool(redial.token),
            on_interrupted=self._on_interrupted,
        )
        super().__init__(connection, peer, events, kind, observer)
        self._tasks = [
            asyncio.create_task(self._await_end(call)),
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._keep_connected(redial)),
        ]

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
        to_stage: bool = False,
        member: str | None = None,
        observer: LiveObserver = UNOBSERVED,
    ) -> OutLink:
        """Connect to `address` as the device named `device`.

        Args:
            pipeline: id of the pipeline that the stream is for.
            route: the route whose last stage this device is; only the draft node reads it.
            to_stage: whether the other device is meant as a stage.
            member: URI that the peer's certificate must have, if it is known (see Member.uri).

        Raises:
            AccessError: when another member answers there.
            DeviceLostError: when nobody answers within `connect_s`.
            FlowEdgeError: the error by which the other side refuses the stream.
        """
        security = security_for(address, None)
        channel, verified = await open_verified(address, settings.channel_options, None, security, member)
        try:
            request = pb.LinkRequest(
                pipeline=pipeline, device=device, route=route, resumes=True, to_stage=to_stage
            )
            # Without a stub, as the two methods differ in their name only.
            call: Call = channel.unary_stream(
                f"/{SERVICE}/{kind.value}",
                request_serializer=pb.LinkRequest.SerializeToString,
                response_deserializer=pb.LinkOffer.FromString,
            )(request)
            offer = await within(settings.connect_s, _first_of(call), "no answer")
            if offer is None:
                raise ProtocolError(f"{address} is not a FlowEdge agent")
            uri = None if verified is None else verified.holder.member.uri
            host = split_address(address)[0]
            made = connect(host, offer.port, offer.token, security.store, uri)
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
        redial = Redial(partial(open_to, host, offer.port, security.store, uri), offer.resume_token)
        return cls(
            channel, call, connected, redial, offer.device[:MAX_TEXT], events, settings, kind, observer
        )

    async def close(self) -> None:
        """End the stream and the connection. The owner is not told."""
        if self._ended is None:
            self._ended = DeviceLostError(self.peer, "the link was closed by this side")
        for task in self._tasks:
            task.cancel()
        self._connection.close(self._ended.reason)
        # gRPC closes a channel's connection when nothing refers to the channel any more, nor to its calls.
        tasks, self._tasks = self._tasks, []
        channel, self._channel = self._channel, None
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if channel is not None:
            await channel.close()

    def _on_closed(self, reason: str) -> None:
        def report() -> None:
            self._broken_reason = reason
            self._broken.set()

        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(report)

    def _on_interrupted(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._interrupted.set)

    async def _keep_connected(self, redial: Redial) -> None:
        """Make another connection whenever one has ended, or brings nothing for a part of the time allowed.

        `_beat` and `_await_end` decide when the peer is lost. Until then a peer that has ended is asked for
        connections in vain; a process that has taken its place does not know the token.
        """
        settings, connection = self._settings, self._connection
        if not connection.resumes:
            return
        doubtful_s = max(DOUBTFUL * settings.silence_s, 2 * settings.heartbeat_s)
        while True:
            if await set_within(settings.heartbeat_s / 2, self._interrupted):
                self._interrupted.clear()
                await asyncio.sleep(GRACE_S)
            if not (connection.interrupted or connection.silent_s > doubtful_s):
                continue
            started = time.monotonic()
            async with redial.dialling() as attempts:
                while connection.interrupted or connection.silent_s > doubtful_s:
                    connected = await attempts.next(REDIAL_S)
                    if connected is None:
                        continue
                    if await redial.take_up(connection, connected):
                        seconds = time.monotonic() - started
                        fields = about(event="link_resumed", peer=self.peer, seconds=seconds)
                        _log.info("the link goes on by another connection", extra=fields)
                        break
                    await asyncio.sleep(REDIAL_S)

    async def _await_end(self, call: Call) -> None:
        """Wait for the end of the call or of the connection, and tell the owner why it has ended."""
        ending = asyncio.ensure_future(_end_of(call, self.peer))
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
                lost = DeviceLostError(self.peer, f"no sign of life for {settings.silence_s:g} s")
                lost.silence_s = settings.silence_s
                self._end(lost)
            elif connection.blocked_s > settings.send_s:
                self._lose(f"it took no data for {settings.send_s:g} s")
            elif self.ready:
                sequence += 1
                with contextlib.suppress(DeviceLostError):  # `_await_end` tells the owner
                    self.send(Heartbeat(sequence, connection.received))

    def _failed(self, told: FlowEdgeError) -> DeviceLostError:
        return DeviceLostError(self.peer, f"the connection failed: {told}")

    def _lose(self, reason: str) -> None:
        self._end(DeviceLostError(self.peer, reason))

    def _end(self, error: DeviceLostError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        self._connection.close(error.reason)
        if self._call is not None:
            self._call.cancel()
        self._events.on_lost(error)


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
        raise DeviceLostError(address, f"the connection to {there} failed: {why_of_socket(error)}") from error


async def _end_of(call: Call, peer: str) -> FlowEdgeError:
    """Wait for the end of the call that opened a link; return the error that tells of it."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        told = from_status(error, peer)
        if isinstance(told, DrainingError) or not isinstance(told, DeviceLostError):
            return told
        why = why_of_grpc(error.details() or error.code().name)
        return DeviceLostError(peer, f"the connection failed: {why}")
    except asyncio.InvalidStateError as error:
        return DeviceLostError(peer, f"the connection failed: {error}")
    return DeviceLostError(peer, "it closed the connection")
