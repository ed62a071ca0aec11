"""Links between real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import grpc
import grpc.aio
import numpy as np
import pytest

from flowedge.core.errors import BadRequestError, DeviceLostError, FlowEdgeError
from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.core.messages import Close, Credit, Fault, Message, Open, Segment
from flowedge.live.observer import UNOBSERVED, LiveObserver
from flowedge.live.transport.connecting import connect
from flowedge.live.transport.frame_link import LinkEvents
from flowedge.live.transport.link import SERVICE, STREAM_METHODS, OutLink
from flowedge.live.transport.listener import UNPROVEN_PER_ADDRESS, LinkListener
from flowedge.live.transport.server import InStream
from flowedge.network.grpc_status import from_status
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind
from flowedge.v1 import pipeline_pb2 as pb
from tests.support.free_ports import free_port
from tests.support.links import RawLink, frame_of, serving_streams
from tests.support.loops import in_loop

SETTINGS = LinkSettings(heartbeat_s=0.1, silence_s=20.0, upstream_silence_s=20.0, connect_s=20.0)
BRISK = LinkSettings(heartbeat_s=0.05, silence_s=1.0, upstream_silence_s=1.0, connect_s=20.0)
DEADLINE_S = 40.0
TEST_S = 120.0


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


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():  # noqa: ASYNC110 (a test looks from outside)
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), DEADLINE_S)


@asynccontextmanager
async def serving(
    owner: Owner, settings: LinkSettings = SETTINGS, observer: LiveObserver = UNOBSERVED
) -> AsyncIterator[str]:
    async with serving_streams("bob", lambda pipeline: owner, settings, observer) as address:
        yield address


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


@in_loop(TEST_S)
async def test_messages_go_in_order_and_replies_come_back() -> None:
    owner, client = Owner(), Client()
    async with serving(owner) as address:
        link = await open_link(address, client)
        assert link.peer == "bob"
        assert owner.streams[0].peer == "älice"
        sizes = [link.send(Open(f"s{i}", i)) for i in range(100)]
        assert min(sizes) > 0
        owner.streams[0].reply(Credit("s1"))
        await until(lambda: len(owner.messages) == 100 and client.messages)
        assert owner.messages == [Open(f"s{i}", i) for i in range(100)]
        assert client.messages == [Credit("s1")]
        await link.close()
        await until(lambda: owner.ends)
    assert client.lost == []


@in_loop(TEST_S)
async def test_a_segment_of_ten_megabytes_arrives_whole() -> None:
    owner, client = Owner(), Client()
    segment = big_segment(640, 4096)
    async with serving(owner) as address:
        link = await open_link(address, client)
        link.send(segment)
        await until(lambda: owner.messages)
        await link.close()
    received = owner.messages[0]
    assert isinstance(received, Segment)
    assert np.array_equal(received.payload, segment.payload)


@in_loop(TEST_S)
async def test_heartbeats_keep_idle_links_open() -> None:
    owner, client = Owner(), Client()
    settings = LinkSettings(heartbeat_s=0.1, silence_s=2.0, upstream_silence_s=2.0)
    async with serving(owner, settings) as address:
        links = [await open_link(address, client, kind, settings) for kind in STREAM_METHODS]
        await asyncio.sleep(2 * settings.silence_s)
        assert not owner.ends and not client.lost
        for link in links:
            await link.close()


@in_loop(TEST_S)
async def test_reading_does_not_wait_for_writing() -> None:
    """Two devices send each other more than any buffer holds before either is asked to read."""
    owners, clients = (Owner(), Owner()), (Client(), Client())
    async with serving(owners[0]) as one, serving(owners[1]) as other:
        links = [await open_link(one, clients[0]), await open_link(other, clients[1])]
        segment = big_segment(512, 4096)
        for _ in range(8):
            for link in links:
                link.send(segment)
        assert not all(link.ready for link in links)
        await until(lambda: all(len(owner.messages) == 8 for owner in owners))
        for link in links:
            assert link.ready
            await link.close()


@in_loop(TEST_S)
async def test_nobody_there() -> None:
    port = free_port()
    with pytest.raises(DeviceLostError, match=f"127.0.0.1:{port}"):
        await open_link(f"127.0.0.1:{port}", Client())


@in_loop(TEST_S)
async def test_somebody_who_accepts_and_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        settings = LinkSettings(connect_s=0.5)
        with pytest.raises(DeviceLostError, match=r"no answer within 0\.5 s"):
            await open_link(f"127.0.0.1:{mute.getsockname()[1]}", Client(), settings=settings)


@in_loop(TEST_S)
async def test_a_refused_stream_raises_the_reason() -> None:
    async with serving(Owner(BadRequestError("no such pipeline, as it is"))) as address:
        with pytest.raises(BadRequestError, match="no such pipeline, as it is"):
            await open_link(address, Client())


@in_loop(TEST_S)
async def test_a_server_that_stops_is_lost_by_name() -> None:
    client = Client()
    async with serving(Owner()) as address:
        link = await open_link(address, client)
    await until(lambda: client.lost)
    assert client.lost[0].device == "bob"
    with pytest.raises(DeviceLostError):
        link.send(Open("s", 1))
    await link.close()
    assert len(client.lost) == 1


@asynccontextmanager
async def deaf_server() -> AsyncIterator[str]:
    """Accepts links, then neither reads nor writes, as a stopped process does."""
    taken: list[socket.socket] = []

    async def serve(request: pb.LinkRequest, context: Any) -> AsyncIterator[pb.LinkOffer]:
        async with listener.offering(None) as offered:
            yield pb.LinkOffer(device="deaf", port=listener.port, token=offered.token)
            taken.append(await offered.connected(DEADLINE_S))
        await asyncio.sleep(DEADLINE_S)

    listener = LinkListener("deaf", None)
    listener.listen("127.0.0.1", 0)
    server = grpc.aio.server(options=SETTINGS.channel_options)
    methods = {
        kind.value: grpc.unary_stream_rpc_method_handler(
            serve, pb.LinkRequest.FromString, pb.LinkOffer.SerializeToString
        )
        for kind in STREAM_METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
        await listener.close()
        for each in taken:
            each.close()


@in_loop(TEST_S)
async def test_a_silent_peer_is_lost_even_while_messages_wait_for_it() -> None:
    client = Client()
    async with deaf_server() as address:
        link = await open_link(address, client, settings=BRISK)
        started = asyncio.get_running_loop().time()
        for _ in range(20):
            link.send(big_segment(512, 4096))
        assert link.num_waiting > 10
        await until(lambda: client.lost)
        assert str(client.lost[0]) == "device deaf: no sign of life for 1 s"
        with pytest.raises(DeviceLostError, match="deaf: no sign of life"):
            link.send(Open("s", 1))
        assert asyncio.get_running_loop().time() - started < 10 * BRISK.silence_s
        await link.close()
        assert len(client.lost) == 1


@in_loop(TEST_S)
async def test_a_peer_that_takes_no_data_is_lost() -> None:
    """It lives, as its heartbeats show, but reads nothing for longer than a message may take."""
    client = Client()
    settings = LinkSettings(heartbeat_s=0.05, silence_s=30.0, upstream_silence_s=30.0, send_s=0.5)
    async with deaf_server() as address:
        link = await open_link(address, client, settings=settings)
        for _ in range(4):
            link.send(big_segment(512, 4096))
        await until(lambda: client.lost)
        assert str(client.lost[0]) == "device deaf: it took no data for 0.5 s"
        await link.close()


@pytest.mark.parametrize("kind", STREAM_METHODS)
@in_loop(TEST_S)
async def test_a_client_that_goes_silent_is_let_go(kind: LinkKind) -> None:
    owner = Owner()
    async with serving(owner, BRISK) as address, RawLink(address, kind.value) as link:
        await link.open()
        await until(lambda: owner.ends)
        assert "no sign of life" in owner.ends[0]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await link.call.read()
        assert "no sign of life" in str(from_status(caught.value, address))


@in_loop(TEST_S)
async def test_bad_frames_are_answered_and_the_stream_goes_on() -> None:
    owner = Owner()
    bad = wire.to_head(big_segment(2, 2)).SerializeToString()
    async with serving(owner) as address, RawLink(address, "InBand") as link:
        await link.open()
        await link.write(frame_of(b"\xff\xff\xff"), frame_of(bad, b"short"), wire.to_bytes(Close("a")))
        await link.write(frame_of(b"", bytes(MAX_FRAME_BYTES)), wire.to_bytes(Close("b")))
        await until(lambda: len(owner.messages) == 2)
        assert owner.messages == [Close("a"), Close("b")]
        assert [error.session for error in owner.bad] == ["", "s", ""]
        faults: list[Fault] = []
        while len(faults) < 3:
            reply = await link.read()
            if isinstance(reply, Fault):
                faults.append(reply)
        assert [(fault.session, fault.device, fault.code) for fault in faults] == [
            ("?", "bob", "protocol"),
            ("s", "bob", "protocol"),
            ("?", "bob", "protocol"),
        ]
        assert f"at most {MAX_FRAME_BYTES} are allowed" in faults[2].reason
    await until(lambda: owner.ends)


@in_loop(TEST_S)
async def test_frames_come_whole_however_the_bytes_are_cut() -> None:
    owner = Owner()
    sent: list[Message] = [Open("s", 9), big_segment(3, 5), Close("s"), big_segment(40, 900), Credit("s")]
    data = b"".join(wire.to_bytes(message) for message in sent)
    async with serving(owner) as address, RawLink(address, "InBand") as link:
        await link.write(*(data[place : place + 997] for place in range(0, len(data), 997)))
        await link.write(*(data[:2000][place : place + 1] for place in range(100)))
        await until(lambda: len(owner.messages) >= len(sent) + 1)
    for message, received in zip(sent, owner.messages, strict=False):
        assert wire.to_bytes(message) == wire.to_bytes(received)


@in_loop(TEST_S)
async def test_a_peer_that_closes_its_half_has_ended_the_stream() -> None:
    owner = Owner()
    async with serving(owner) as address, RawLink(address, "InBand") as link:
        await link.write(wire.to_bytes(Open("s", 9)), wire.to_bytes(Close("s"))[:-1])
        link.end_writing()
        await until(lambda: owner.ends)
        assert owner.ends == ["it closed the connection"]
        assert owner.messages == [Open("s", 9)]


@in_loop(TEST_S)
async def test_a_token_is_good_for_one_connection_of_its_caller() -> None:
    owner = Owner()
    async with serving(owner) as address, RawLink(address, "InBand") as link:
        await link.open()
        for token in (link.offer.token, bytes(32)):
            with pytest.raises(OSError, match="closed"):
                await connect("127.0.0.1", link.offer.port, token, None, None)
        await link.write(wire.to_bytes(Open("s", 9)))
        await until(lambda: owner.messages)


@in_loop(TEST_S)
async def test_connections_without_a_token_are_closed_for_others() -> None:
    owner = Owner()
    async with serving(owner) as address, RawLink(address, "InBand") as link:
        link.offer = await link.call.read()
        silent = [
            await asyncio.open_connection("127.0.0.1", link.offer.port)
            for _ in range(UNPROVEN_PER_ADDRESS + 8)
        ]
        for reader, _ in silent[:8]:
            assert await asyncio.wait_for(reader.read(1), DEADLINE_S) == b""
        connected = await connect("127.0.0.1", link.offer.port, link.offer.token, None, None)
        await until(lambda: owner.streams)
        connected.close()
        for _, writer in silent:
            writer.close()
        await until(lambda: owner.ends)


@in_loop(TEST_S)
async def test_many_links_at_once() -> None:
    owner, clients = Owner(), [Client() for _ in range(40)]
    async with serving(owner) as address:
        links = await asyncio.gather(*(open_link(address, client) for client in clients))
        for number, link in enumerate(links):
            link.send(Open(f"s{number}", 1))
        await until(lambda: len(owner.messages) == 40)
        for stream in owner.streams:
            stream.reply(Credit("s"))
        await until(lambda: all(client.messages for client in clients))
        await asyncio.gather(*(link.close() for link in links))
        await until(lambda: len(owner.ends) == 40)


@in_loop(TEST_S)
async def test_a_peer_that_reads_no_replies_is_dropped() -> None:
    owner = Owner()

    class FewReplies(LinkSettings):
        max_replies: ClassVar[int] = 4

    settings = FewReplies(heartbeat_s=0.05)
    async with serving(owner, settings) as address, RawLink(address, "InBand") as link:
        await link.open()
        large = Fault("s", "bob", "device", "x" * 4096)
        for _ in range(5000):
            owner.streams[0].reply(large)
        await until(lambda: owner.ends)
        assert owner.ends == ["the other side reads no replies"]
