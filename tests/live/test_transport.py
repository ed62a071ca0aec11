"""Links between real sockets on loopback."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import grpc
import grpc.aio
import numpy as np
import pytest

from flowedge.core.errors import BadRequestError, DeviceLostError, FlowEdgeError
from flowedge.core.messages import (
    MAX_FRAME_BYTES,
    PIECE_BYTES,
    Close,
    Credit,
    Fault,
    Heartbeat,
    Message,
    Open,
    Segment,
)
from flowedge.live.transport.link import (
    DEVICE_KEY,
    PIPELINE_KEY,
    SERVICE,
    STREAM_METHODS,
    LinkEvents,
    LinkKind,
    OutLink,
)
from flowedge.live.transport.server import InStream, StreamServer
from flowedge.net.grpc_status import from_status
from flowedge.net.link_settings import LinkSettings
from flowedge.protocol import wire
from tests.support.seams import writing_lock

SETTINGS = LinkSettings(heartbeat_s=0.1, silence_s=20.0, upstream_silence_s=20.0, connect_s=20.0)
BRISK = LinkSettings(heartbeat_s=0.05, silence_s=1.0, upstream_silence_s=1.0, connect_s=20.0)
DEADLINE_S = 40.0


class Owner:
    """Notes what happens on the streams of one pipeline."""

    def __init__(self, refuse: FlowEdgeError | None = None) -> None:
        self.refuse = refuse
        self.streams: list[InStream] = []
        self.messages: list[Message] = []
        self.bad: list[wire.FrameError] = []
        self.ends: list[str] = []

    def opened(self, stream: InStream) -> None:
        if self.refuse is not None:
            raise self.refuse
        stream.max_frame_bytes = MAX_FRAME_BYTES
        self.streams.append(stream)

    def received(self, stream: InStream, message: Message) -> None:
        self.messages.append(message)

    def malformed(self, stream: InStream, error: wire.FrameError) -> None:
        self.bad.append(error)

    def closed(self, stream: InStream, reason: str) -> None:
        self.ends.append(reason)


class Client:
    """The owner of a link, which keeps the events of the link."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lost: list[DeviceLostError] = []

    @property
    def events(self) -> LinkEvents:
        return LinkEvents(self.messages.append, self.lost.append)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 (a test looks from outside)
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), DEADLINE_S)


@asynccontextmanager
async def serving(owner: Owner, settings: LinkSettings = SETTINGS) -> AsyncIterator[str]:
    server = grpc.aio.server(options=settings.channel_options)
    server.add_generic_rpc_handlers((StreamServer("bob", lambda pipeline: owner, settings).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def open_link(
    address: str, client: Client, kind: LinkKind = LinkKind.IN_BAND, settings: LinkSettings = SETTINGS
) -> OutLink:
    return await OutLink.open(
        address, kind, pipeline="p", device="älice", events=client.events, settings=settings
    )


def big_segment(rows: int, width: int) -> Segment:
    numbers = np.arange(rows, dtype=np.int64)
    payload = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    return Segment("s", 0, 0, True, 0, numbers, numbers - 1, payload)


def test_messages_go_in_order_and_replies_come_back() -> None:
    async def test() -> None:
        owner, client = Owner(), Client()
        async with serving(owner) as address:
            link = await open_link(address, client)
            assert link.peer == "bob"
            assert owner.streams[0].peer == "älice"
            sizes = [await link.send(Open(f"s{i}", i)) for i in range(100)]
            assert min(sizes) > 0
            owner.streams[0].reply(Credit("s1"))
            await until(lambda: len(owner.messages) == 100 and client.messages)
            assert owner.messages == [Open(f"s{i}", i) for i in range(100)]
            assert client.messages == [Credit("s1")]
            await link.close()
            await until(lambda: owner.ends)
        assert client.lost == []

    run(test)


def test_a_segment_of_ten_megabytes_arrives_whole() -> None:
    async def test() -> None:
        owner, client = Owner(), Client()
        segment = big_segment(640, 4096)
        async with serving(owner) as address:
            link = await open_link(address, client)
            await link.send(segment)
            await until(lambda: owner.messages)
            await link.close()
        received = owner.messages[0]
        assert isinstance(received, Segment)
        assert np.array_equal(received.payload, segment.payload)

    run(test)


def test_a_heartbeat_passes_between_the_pieces_of_a_segment() -> None:
    class Sizes:
        """An observer that notes the sizes of the messages that are received."""

        def __init__(self) -> None:
            self.sizes: list[int] = []

        def received(self, kind: str, size: int) -> None:
            self.sizes.append(size)

        def sent(self, kind: str, size: int) -> None: ...

    async def test() -> None:
        owner, observer = Owner(), Sizes()
        server = grpc.aio.server(options=SETTINGS.channel_options)
        streams = StreamServer("bob", lambda _: owner, SETTINGS, observer)  # type: ignore[arg-type]
        server.add_generic_rpc_handlers((streams.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        link = await open_link(f"127.0.0.1:{port}", Client())
        segment = big_segment(2500, 4096)
        sending = asyncio.ensure_future(link.send(segment))
        await asyncio.sleep(0)
        await link.send(Heartbeat(7))
        assert not sending.done()
        assert await sending > 8 * PIECE_BYTES
        await until(lambda: owner.messages)
        await link.close()
        await server.stop(0)
        large = [place for place, size in enumerate(observer.sizes) if size > PIECE_BYTES // 2]
        assert len(large) > 8 and max(observer.sizes) < PIECE_BYTES + 64
        assert any(size < 64 for size in observer.sizes[large[0] : large[-1]])
        (received,) = owner.messages
        assert isinstance(received, Segment)
        assert np.array_equal(received.payload, segment.payload)

    run(test)


def test_heartbeats_keep_idle_links_open() -> None:
    async def test() -> None:
        owner, client = Owner(), Client()
        settings = LinkSettings(heartbeat_s=0.1, silence_s=2.0, upstream_silence_s=2.0)
        async with serving(owner, settings) as address:
            links = [await open_link(address, client, kind, settings) for kind in STREAM_METHODS]
            await asyncio.sleep(2 * settings.silence_s)
            assert not owner.ends and not client.lost
            for link in links:
                await link.close()

    run(test)


def test_kinds_of_link_use_connections_of_their_own() -> None:
    async def test() -> None:
        owner, peers = Owner(), set()
        server = grpc.aio.server(options=SETTINGS.channel_options)

        class Recording(StreamServer):
            async def _run(self, stream: InStream, owner: Any, context: Any) -> None:
                peers.add(context.peer())
                await super()._run(stream, owner, context)

        server.add_generic_rpc_handlers((Recording("bob", lambda pipeline: owner, SETTINGS).handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        links = [await open_link(f"127.0.0.1:{port}", Client(), kind) for kind in STREAM_METHODS]
        for link in links:
            await link.close()
        await server.stop(0)
        assert len(peers) == 2

    run(test)


def test_reading_does_not_wait_for_writing() -> None:
    """Two devices send each other more than any buffer holds before either is asked to read."""

    async def test() -> None:
        owners, clients = (Owner(), Owner()), (Client(), Client())
        async with serving(owners[0]) as one, serving(owners[1]) as other:
            links = [await open_link(one, clients[0]), await open_link(other, clients[1])]
            segment = big_segment(512, 4096)
            await asyncio.gather(*(link.send(segment) for link in links for _ in range(8)))
            await until(lambda: all(len(owner.messages) == 8 for owner in owners))
            for link in links:
                await link.close()

    run(test)


def test_nobody_there() -> None:
    async def test() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with pytest.raises(DeviceLostError, match=f"127.0.0.1:{port}"):
            await open_link(f"127.0.0.1:{port}", Client())

    run(test)


def test_somebody_who_accepts_and_says_nothing() -> None:
    async def test() -> None:
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            settings = LinkSettings(connect_s=0.5)
            with pytest.raises(DeviceLostError, match=r"no answer within 0\.5 s"):
                await open_link(f"127.0.0.1:{mute.getsockname()[1]}", Client(), settings=settings)

    run(test)


def test_a_refused_stream_raises_the_reason() -> None:
    async def test() -> None:
        async with serving(Owner(BadRequestError("no such pipeline, as it is"))) as address:
            with pytest.raises(BadRequestError, match="no such pipeline, as it is"):
                await open_link(address, Client())

    run(test)


def test_a_server_that_stops_is_lost_by_name() -> None:
    async def test() -> None:
        client = Client()
        async with serving(Owner()) as address:
            link = await open_link(address, client)
        await until(lambda: client.lost)
        assert client.lost[0].device == "bob"
        with pytest.raises(DeviceLostError):
            await link.send(Open("s", 1))
        await link.close()
        assert len(client.lost) == 1

    run(test)


@asynccontextmanager
async def deaf_server() -> AsyncIterator[str]:
    """Accepts streams, then neither reads nor writes, as a stopped process does."""
    release = asyncio.Event()

    async def serve(_: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.send_initial_metadata(((DEVICE_KEY, b"deaf"),))
        await release.wait()

    server = grpc.aio.server(options=SETTINGS.channel_options)
    methods = {kind.value: grpc.stream_stream_rpc_method_handler(serve) for kind in STREAM_METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        release.set()
        await server.stop(0)


def test_a_silent_peer_is_lost_even_while_a_send_waits_for_it() -> None:
    async def test() -> None:
        client = Client()
        async with deaf_server() as address:
            link = await open_link(address, client, settings=BRISK)
            started = asyncio.get_running_loop().time()
            with pytest.raises(DeviceLostError, match="deaf: no sign of life"):
                for _ in range(100):
                    await link.send(big_segment(512, 4096))
            assert asyncio.get_running_loop().time() - started < 10 * BRISK.silence_s
            assert [error.device for error in client.lost] == ["deaf"]
            await link.close()

    run(test)


def test_a_heartbeat_that_is_being_sent_ends_with_the_link() -> None:
    def is_sending() -> bool:
        return any("OutLink.send" in repr(task.get_coro()) for task in asyncio.all_tasks())

    async def test() -> None:
        complaints: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with serving(Owner()) as address:
            link = await open_link(address, Client())
            async with writing_lock(link):
                await until(is_sending)
                await link.close()
            await until(lambda: not is_sending())
        gc.collect()
        assert complaints == []

    run(test)


@pytest.mark.parametrize("kind", STREAM_METHODS)
def test_a_client_that_goes_silent_is_let_go(kind: LinkKind) -> None:
    async def test() -> None:
        owner = Owner()
        async with serving(owner, BRISK) as address, grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/{kind.value}")(metadata=((PIPELINE_KEY, "p"),))
            await call.initial_metadata()
            await until(lambda: owner.ends)
            assert "no sign of life" in owner.ends[0]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert "no sign of life" in str(from_status(caught.value, address))

    run(test)


def test_bad_frames_are_answered_and_the_stream_goes_on() -> None:
    async def test() -> None:
        owner = Owner()
        bad = wire.to_frame(big_segment(2, 2))
        bad.segment.payload.data = b"short"
        async with serving(owner) as address, grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/InBand")(metadata=((PIPELINE_KEY, "p"),))
            for data in (b"\xff\xff\xff", bad.SerializeToString(), wire.encode(Close("other"))):
                await call.write(data)
            await until(lambda: owner.messages)
            assert owner.messages == [Close("other")]
            assert [error.session for error in owner.bad] == ["", "s"]
            faults: list[Fault] = []
            while len(faults) < 2:
                reply = wire.decode(await call.read())
                if isinstance(reply, Fault):
                    faults.append(reply)
            assert [(fault.session, fault.device, fault.code) for fault in faults] == [
                ("?", "bob", "protocol"),
                ("s", "bob", "protocol"),
            ]
            call.cancel()
            await until(lambda: owner.ends)

    run(test)


def test_a_peer_that_reads_no_replies_is_dropped() -> None:
    async def test() -> None:
        owner = Owner()

        class FewReplies(LinkSettings):
            max_replies: ClassVar[int] = 4

        settings = FewReplies(heartbeat_s=0.05)
        async with serving(owner, settings) as address, grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/InBand")(metadata=((PIPELINE_KEY, "p"),))
            await call.initial_metadata()
            for _ in range(5):
                owner.streams[0].reply(Credit("s"))
            await until(lambda: owner.ends)
            assert owner.ends == ["the other side reads no replies"]

    run(test)
