"""The port on which the data of pipelines comes in: who may connect there, and what others cost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.core.errors import AccessError, DeviceLostError
from flowedge.core.messages import Close
from flowedge.live.transport import listener as listening
from flowedge.live.transport.connecting import connect, open_to
from flowedge.live.transport.frame_socket import FrameSocket, SocketEvents
from flowedge.live.transport.link_connection import LinkConnection
from flowedge.live.transport.listener import LinkListener
from flowedge.live.transport.redial import Redial
from flowedge.protocol.wire import encode
from tests.cluster.clusters import Cluster, now
from tests.support.loops import in_loop

ANSWER_S = 20.0
TEST_S = 60.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = Cluster(tmp_path_factory.mktemp("home"), 1)  # its service is off
    for name in ("kitchen", "garage", "thief"):
        cluster.member(name, CertificateRole.AGENT)
    return cluster


def store_of(cluster: Cluster, name: str) -> CredentialStore:
    return CredentialStore.open(cluster.directory / name)


@contextlib.asynccontextmanager
async def kitchen_port(home: Cluster) -> AsyncIterator[LinkListener]:
    """The port of the member "kitchen"."""
    port = LinkListener("kitchen", store_of(home, "kitchen"))
    port.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await port.close()


async def connect_as(
    caller: CredentialStore | None, port: LinkListener, token: bytes, member: str | None
) -> socket.socket:
    made = connect("127.0.0.1", port.port, token, caller, member)
    return await asyncio.wait_for(made, ANSWER_S)


@in_loop(TEST_S)
async def test_the_member_that_was_offered_a_link_connects_once(home: Cluster) -> None:
    garage, kitchen = store_of(home, "garage"), store_of(home, "kitchen").member.uri
    async with kitchen_port(home) as port, port.offering(garage.member.uri) as offered:
        made = await connect_as(garage, port, offered.token, kitchen)
        assert isinstance(made, ssl.SSLSocket)
        assert made.version() == "TLSv1.3"
        taken = await offered.connected(ANSWER_S)
        with pytest.raises(OSError, match="closed"):
            await connect_as(garage, port, offered.token, kitchen)
        made.close()
        taken.close()


@in_loop(TEST_S)
async def test_another_member_cannot_use_a_token(home: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    garage, thief = store_of(home, "garage"), store_of(home, "thief")
    kitchen = store_of(home, "kitchen").member.uri
    async with kitchen_port(home) as port, port.offering(garage.member.uri) as offered:
        with pytest.raises(OSError, match="closed"):
            await connect_as(thief, port, offered.token, kitchen)
        with pytest.raises(DeviceLostError, match="its connection was not made"):
            await offered.connected(0.1)
    assert "shows the token of" in caplog.text


@in_loop(TEST_S)
async def test_a_link_is_taken_up_by_its_member_alone(
    home: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """In TLS: each further connection shows the certificate again."""
    garage, thief = store_of(home, "garage"), store_of(home, "thief")
    kitchen = store_of(home, "kitchen").member.uri
    frames: list[bytes] = []
    came = SocketEvents(lambda head, _: frames.append(head), lambda _: None, lambda _: None, lambda: None)
    async with kitchen_port(home) as port, port.offering(garage.member.uri) as offered:
        with port.resuming(garage.member.uri) as resumed:
            ends = [await connect_as(garage, port, offered.token, kitchen), await offered.connected(ANSWER_S)]
            near, far = (LinkConnection(FrameSocket(end, 1 << 20), resumes=True) for end in ends)
            resumed.link = far
            for connection in (near, far):
                connection.start(came)
            near.detach()  # as after the end of its connection
            near.send(encode(Close("between")))
            stolen = Redial(partial(open_to, "127.0.0.1", port.port, thief, kitchen), resumed.token)
            assert not await stolen.take_up(near, await stolen.dial())
            assert "shows the token of" in caplog.text and not frames
            own = Redial(partial(open_to, "127.0.0.1", port.port, garage, kitchen), resumed.token)
            assert await own.take_up(near, await own.dial())
            far.send(encode(Close("back")))
            while len(frames) < 2:  # noqa: ASYNC110 (a test looks from outside)
                await asyncio.sleep(0.01)
            near.close()
            far.close()


@in_loop(TEST_S)
async def test_a_caller_without_a_certificate_of_the_cluster_is_refused(
    home: Cluster, tmp_path: Path
) -> None:
    foreign = Cluster(tmp_path, 1)
    foreign.member("garage", CertificateRole.AGENT)
    garage, kitchen = store_of(home, "garage"), store_of(home, "kitchen").member.uri
    async with kitchen_port(home) as port, port.offering(garage.member.uri) as offered:
        with pytest.raises((OSError, AccessError)):
            await connect_as(store_of(foreign, "garage"), port, offered.token, kitchen)
        with pytest.raises(OSError):
            await connect_as(None, port, offered.token, None)  # plaintext
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=bare)
        with pytest.raises(OSError):
            writer.write(offered.token)
            await asyncio.wait_for(reader.read(), ANSWER_S)
            raise ConnectionError("nothing came back")
        writer.close()
        # None of them has used the token up.
        made = await connect_as(garage, port, offered.token, kitchen)
        (await offered.connected(ANSWER_S)).close()
        made.close()


@in_loop(TEST_S)
async def test_a_revoked_member_is_refused(home: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    home.member("stolen", CertificateRole.AGENT)
    stolen, kitchen = store_of(home, "stolen"), store_of(home, "kitchen")
    home.authority.revoke("stolen", now())
    port = LinkListener("kitchen", kitchen)
    port.listen("127.0.0.1", 0)
    async with port.offering(stolen.member.uri) as offered:
        kitchen.replace_revoked(home.authority.revocation_list(now()))
        with pytest.raises(OSError, match="closed"):
            await connect_as(stolen, port, offered.token, kitchen.member.uri)
    await port.close()
    assert "has been revoked" in caplog.text


@in_loop(TEST_S)
async def test_a_caller_sends_its_token_to_the_expected_member_only(home: Cluster, tmp_path: Path) -> None:
    garage = store_of(home, "garage")
    foreign = Cluster(tmp_path, 1)
    foreign.member("kitchen", CertificateRole.AGENT)
    async with kitchen_port(home) as port, port.offering(garage.member.uri) as offered:
        with pytest.raises(AccessError, match="not the expected"):
            await connect_as(garage, port, offered.token, store_of(home, "thief").member.uri)
    impostor = LinkListener("kitchen", store_of(foreign, "kitchen"))
    impostor.listen("127.0.0.1", 0)
    with pytest.raises((ssl.SSLError, AccessError)):
        await connect_as(garage, impostor, bytes(32), store_of(home, "kitchen").member.uri)
    await impostor.close()


@in_loop(TEST_S)
async def test_silent_callers_are_closed_in_time(home: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the handshake, after it, and in the middle of the token."""
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.5)
    garage = store_of(home, "garage")
    async with kitchen_port(home) as port:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(garage.member_file)
        for encrypted, sent in ((None, b""), (None, b"\x16\x03\x01"), (context, b""), (context, b"x" * 31)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=encrypted)
            writer.write(sent)
            with contextlib.suppress(OSError):
                assert await asyncio.wait_for(reader.read(), ANSWER_S) == b""
            writer.close()
