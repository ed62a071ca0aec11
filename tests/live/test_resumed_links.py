"""Links over a network that fails: they go on by another connection, and nothing is lost or comes twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing

import pytest

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Close, Credit, Message, Open
from flowedge.live.transport import link_connection
from flowedge.live.transport.connecting import connect, open_to, resume
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.live.transport.link import STREAM_METHODS, OutLink
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.network.link_settings import LinkSettings
from flowedge.protocol import wire
from flowedge.protocol.link_kind import LinkKind
from tests.live.test_transport import TEST_S, Client, Owner, big_segment, open_link, until
from tests.support.links import LinkProxy, RawLink, serving_streams
from tests.support.loops import in_loop

PATIENT = LinkSettings(heartbeat_s=0.1, silence_s=60.0, upstream_silence_s=60.0, connect_s=20.0)
DOUBTFUL = LinkSettings(heartbeat_s=0.1, silence_s=5.0, upstream_silence_s=60.0, connect_s=20.0)
BRISK = LinkSettings(heartbeat_s=0.05, silence_s=1.0, upstream_silence_s=1.0, connect_s=20.0)


@asynccontextmanager
async def linked(
    settings: LinkSettings, kind: LinkKind = LinkKind.IN_BAND
) -> AsyncIterator[tuple[OutLink, Client, Owner, LinkProxy]]:
    owner, client, proxy = Owner(), Client(), LinkProxy()
    serving = serving_streams("bob", lambda pipeline: owner, settings, proxy=proxy)
    async with serving as address:
        link = await open_link(address, client, kind, settings)
        try:
            yield link, client, owner, proxy
        finally:
            await link.close()


async def check_that_all_comes_once(
    link: OutLink, client: Client, owner: Owner, proxy: LinkProxy, *faults: str
) -> None:
    """Send messages both ways through the faults of a network; check what has come."""
    sent: list[Message] = []
    answers = []
    for round_, fault in enumerate((*faults, "")):
        for number in range(40):
            sent += [Open(f"s{round_}.{number}", number), Close(f"s{round_}.{number}")]
            answers.append(Credit(f"s{round_}.{number}"))
            link.send(sent[-2])
            owner.streams[0].reply(answers[-1])
            link.send(sent[-1])
            if number == 20 and fault:
                getattr(proxy, fault)()
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(owner.messages) >= len(sent) and len(client.messages) >= len(answers))  # noqa: B023
    assert owner.messages == sent and client.messages == answers
    assert not client.lost and not owner.ends


@pytest.mark.parametrize("kind", STREAM_METHODS)
@in_loop(TEST_S)
async def test_a_connection_that_ends_is_replaced(kind: LinkKind) -> None:
    async with linked(PATIENT, kind) as (link, client, owner, proxy):
        await check_that_all_comes_once(link, client, owner, proxy, "cut", "cut", "cut")
        assert proxy.accepted >= 4


@in_loop(TEST_S)
async def test_a_connection_that_brings_nothing_is_replaced() -> None:
    """What has been written to it is lost, and neither side hears of its end."""
    async with linked(DOUBTFUL) as (link, client, owner, proxy):
        await check_that_all_comes_once(link, client, owner, proxy, "abandon", "abandon")


@in_loop(TEST_S)
async def test_a_half_sent_segment_is_sent_again() -> None:
    async with linked(PATIENT) as (link, client, owner, proxy):
        segments = [big_segment(512, 4096) for _ in range(3)]
        proxy.drops = True
        for segment in segments:
            link.send(segment)
        assert not link.ready
        proxy.cut()
        proxy.drops = False
        await until(lambda: len(owner.messages) == 3 and link.ready)
        assert [getattr(each, "payload", None) is not None for each in owner.messages] == [True] * 3
        link.send(Close("s"))
        await until(lambda: owner.messages[-1] == Close("s"))
        assert not client.lost and not owner.ends


@in_loop(TEST_S)
async def test_a_network_that_stays_away_is_the_loss_of_the_peer() -> None:
    async with linked(BRISK) as (_, client, owner, proxy):
        proxy.refuses = True
        proxy.cut()
        await until(lambda: client.lost and owner.ends)
        assert str(client.lost[0]) == "device bob: no sign of life for 1 s"
        assert len(client.lost) == 1


@in_loop(TEST_S)
async def test_what_is_kept_is_bounded_and_a_gap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_connection, "KEPT_BYTES", 200)
    async with linked(BRISK) as (link, client, owner, proxy):
        proxy.drops = True
        for number in range(100):
            link.send(Open(f"s{number}", 1))
        proxy.cut()
        proxy.drops = False
        await until(lambda: client.lost)
        assert owner.messages == [Open(f"s{number}", 1) for number in range(len(owner.messages))]


@in_loop(TEST_S)
async def test_only_the_caller_of_a_link_takes_it_up() -> None:
    owner, client = Owner(), Client()
    async with serving_streams("bob", lambda pipeline: owner, PATIENT) as address:
        link = await open_link(address, client, settings=PATIENT)
        async with RawLink(address, "InBand") as raw:
            await raw.open()
            none, of_another = bytes(32), raw.offer.resume_token  # whose caller takes up nothing
            for token in (none, of_another):
                with closing(await open_to("127.0.0.1", raw.offer.port, None, None)) as connected:
                    await refused(resume(connected, token, 0))
            await refused(connect("127.0.0.1", raw.offer.port, raw.offer.resume_token, None, None))
        link.send(Close("s"))
        await until(lambda: owner.messages == [Close("s")])
        assert not client.lost
        await link.close()


async def refused(connecting: Awaitable[object]) -> None:
    with pytest.raises(OSError, match=r"closed|reset"):
        await connecting


@pytest.mark.parametrize("count", [3, 1 << 63])
def test_a_count_of_frames_that_were_never_sent_is_refused(count: int) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    connection = LinkConnection(FrameSocket(pairs[0][0], 1 << 20), resumes=True)
    connection.start(SocketEvents(lambda *_: None, lambda _: None, lambda _: None, lambda: None))
    connection.send(wire.encode(Close("a")))
    connection.send(wire.encode(Close("b")))
    assert connection.detach() == 0
    with pytest.raises(ProtocolError, match=f"it has received {count} frames; kept are those from 0 to 2"):
        connection.attach(pairs[1][0], count)
    connection.close()
    for each in (pairs[0][1], *pairs[1]):
        each.close()
