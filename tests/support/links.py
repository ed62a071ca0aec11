"""Both ends of links, for tests: a server of streams, and a caller that sends any bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from flowedge.cluster.credentials import CredentialStore
from flowedge.core.messages import Message
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.connecting import connect
from flowedge.live.transport.link import SERVICE
from flowedge.live.transport.listener import LinkListener
from flowedge.live.transport.server import StreamOwner, StreamServer
from flowedge.network.address import split_address
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.v1 import pipeline_pb2 as pb


@contextlib.asynccontextmanager
async def serving_streams(
    name: str,
    find: Callable[[str], StreamOwner],
    settings: LinkSettings,
    observer: LiveObserver = UNOBSERVED,
    add_services: Callable[[grpc.aio.Server], object] = lambda server: None,
    proxy: LinkProxy | None = None,
) -> AsyncIterator[str]:
    """Serve the streams of links in plaintext, as the device `name`; yield the address.

    proxy: through which the connections of links go.
    """
    listener = LinkListener(name, None)
    listener.listen("127.0.0.1", 0)
    if proxy is not None:
        listener.port = await proxy.listen(listener.port)
    server = grpc.aio.server(options=settings.channel_options)
    streams = StreamServer(name, lambda pipeline, _: find(pipeline), settings, listener, observer)
    server.add_generic_rpc_handlers((streams.handler(),))
    add_services(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        await listener.close()
        if proxy is not None:
            await proxy.close()


class LinkProxy:
    """A network between the two ends of links, which can fail.

    Attributes:
        refuses: whether new connections are closed at once.
        drops: whether nothing passes the connections that there are, and new ones wait.
    """

    def __init__(self) -> None:
        self.refuses = self.drops = False
        self.accepted = 0
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, port: int) -> int:
        """Pass connections on to a port of loopback; return the port of the proxy."""
        self._port = port
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """End all connections, as a network does that has lost what it knew of them."""
        for writer in self._writers:
            writer.transport.abort()

    def abandon(self) -> None:
        """Let nothing pass the present connections any more; new ones are not touched."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        while self.drops:  # noqa: ASYNC110 (a network does not say when it works again)
            await asyncio.sleep(0.01)
        if self.refuses:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass(source, sink)))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                while self.drops:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                sink.write(data)
                await sink.drain()
        sink.close()


def frame_of(head: bytes, tail: bytes = b"") -> bytes:
    """Return a frame with any head and tail."""
    return wire.LENGTHS.pack(len(head), len(tail)) + head + tail


async def send_frames(
    address: str, offer: pb.LinkOffer, store: CredentialStore | None, uri: str | None, frames: Sequence[bytes]
) -> None:
    """Make the connection of a link that the device at an address has offered, and send bytes on it.

    store, uri: see `connect`.
    """
    connected = await connect(split_address(address)[0], offer.port, offer.token, store, uri)
    with contextlib.closing(connected):
        connected.setblocking(True)
        connected.settimeout(10.0)
        for frame in frames:
            await asyncio.to_thread(connected.sendall, frame)


class RawLink:
    """A caller in plaintext that opens a link and sends any bytes.

    Attributes:
        call: the call that opens the link; offer: the answer.
    """

    def __init__(self, address: str, method: str = "InBand", pipeline: str = "test") -> None:
        self._channel = grpc.aio.insecure_channel(address, options=LinkSettings().channel_options)
        self._host = split_address(address)[0]
        self.call: Any = self._channel.unary_stream(
            f"/{SERVICE}/{method}",
            request_serializer=pb.LinkRequest.SerializeToString,
            response_deserializer=pb.LinkOffer.FromString,
        )(pb.LinkRequest(pipeline=pipeline, device="stranger"))
        self.offer = pb.LinkOffer()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> RawLink:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Make the link's connection; a refusal is raised as gRPC's error."""
        self.offer = await self.call.read()
        connected = await connect(self._host, self.offer.port, self.offer.token, None, None)
        self._reader, self._writer = await asyncio.open_connection(sock=connected)

    async def write(self, *data: bytes) -> None:
        """Send bytes, such as frames."""
        if self._writer is None:
            await self.open()
        assert self._writer is not None
        for each in data:
            self._writer.write(each)
            await self._writer.drain()

    async def read(self) -> Message:
        """Return the next message that comes back. Raises EOFError at the end."""
        if self._reader is None:
            await self.open()
        assert self._reader is not None
        head, tail = wire.LENGTHS.unpack(await self._reader.readexactly(wire.LENGTHS.size))
        return wire.read(await self._reader.readexactly(head), await self._reader.readexactly(tail))[0]

    def end_writing(self) -> None:
        """Close the sending half of the connection."""
        assert self._writer is not None
        self._writer.write_eof()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.call.cancel()
        await self._channel.close()
