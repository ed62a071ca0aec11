"""A member of the cluster that sends weights as slowly as it can, or nothing, does not stop fetching."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest

from flowedge.cluster import process
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.process import Security
from flowedge.core.errors import DeviceLostError
from flowedge.network.deadline import within
from flowedge.network.link_settings import LinkSettings
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.fetcher import Fetched, Fetcher
from flowedge.weights.fetch.progress import FetchProgress
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import fetch_document
from flowedge.weights.local_weights import HELD, LocalWeights
from flowedge.weights.service import WeightsService
from flowedge.weights.settings import WeightsSettings
from tests.cluster.clusters import Cluster
from tests.cluster.raw_caller import raw_caller
from tests.support.free_ports import free_ports
from tests.support.loops import in_loop
from tests.weights.servers import QuickSettings, local_weights_at
from tests.weights.test_fetcher import OBJECTS, SIZES, assert_whole, stocked

LONG_S = 120.0  # after which something is held to hang
TEST_S = 300.0


class Hasty(QuickSettings):
    """Deadlines short enough for a test."""

    first_s: ClassVar[float] = 1.0
    rate_window_s: ClassVar[float] = 0.6
    straggler_s: ClassVar[float] = 0.5
    document_s: ClassVar[float] = 3.0
    hedge_s: ClassVar[float] = 0.3


HASTY = Hasty(stall_s=5.0, give_up_s=3.0)


class Hostile(rpc.WeightsServicer):
    """Claims to have every object, and sends none of them as a whole."""

    def __init__(self, pause_s: float, chunk: Callable[[], bytes]) -> None:
        self._pause_s, self._chunk = pause_s, chunk
        self.asked = 0

    async def Have(self, request: pb.HaveRequest, context: Any) -> pb.HaveReply:  # noqa: N802
        return pb.HaveReply(held=bytes([HELD]) * len(request.objects), sending=0)

    async def Read(self, request: pb.ReadRequest, context: Any) -> AsyncIterator[pb.ObjectChunk]:  # noqa: N802
        self.asked += 1
        while True:
            yield pb.ObjectChunk(data=self._chunk())
            await asyncio.sleep(self._pause_s)


ATTACKS = {
    "empty": (0.0, lambda: b""),
    "dripping": (0.2, lambda: b"\0"),
    "slow": (0.2, lambda: b"\0" * 4000),  # more than the least rate
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster", free_ports(2))
    process.use(made.security("taker", CertificateRole.AGENT))
    yield made
    process.use(Security(None))


@asynccontextmanager
async def serving_as(cluster: Cluster, name: str, service: rpc.WeightsServicer) -> AsyncIterator[str]:
    """Serve weights with the certificate of a member; yield the address."""
    store = cluster.security(name, CertificateRole.AGENT).store
    assert store is not None
    own = store.credentials
    server = grpc.aio.server(options=LinkSettings().channel_options)
    rpc.add_WeightsServicer_to_server(service, server)
    credentials = grpc.ssl_server_credentials([(own.key_pem, own.certificate_pem)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def take(local: LocalWeights, settings: WeightsSettings, *addresses: str) -> Fetched:
    async def on_progress(progress: FetchProgress) -> None:
        assert 0 <= progress.done <= progress.total

    sources = [SourceAddress(address) for address in addresses]
    fetching = Fetcher("taker", local, SIZES, sources, settings, on_progress).run()
    return await within(LONG_S, fetching, "fetching hangs: it did not end")


@pytest.mark.parametrize("attack", ATTACKS)
@in_loop(TEST_S)
async def test_an_honest_source_gives_what_a_hostile_source_withholds(
    attack: str, cluster: Cluster, tmp_path: Path
) -> None:
    taker, giver = local_weights_at(tmp_path / "taker"), stocked(tmp_path / "giver")
    hostile, honest = Hostile(*ATTACKS[attack]), WeightsService("honest", giver, HASTY)
    async with serving_as(cluster, "bad", hostile) as bad, serving_as(cluster, "good", honest) as good:
        fetched = await take(taker, HASTY, bad, good)
    assert fetched.received[good] > 0
    assert_whole(taker)


@pytest.mark.parametrize("attack", ["empty", "dripping"])
@in_loop(TEST_S)
async def test_a_hostile_source_alone_ends_in_an_error_with_the_reason(
    attack: str, cluster: Cluster, tmp_path: Path
) -> None:
    taker, hostile = local_weights_at(tmp_path / "taker"), Hostile(*ATTACKS[attack])
    async with serving_as(cluster, "bad", hostile) as bad:
        reason = "chunk of 0 bytes" if attack == "empty" else "less than 8 KiB/s"
        with pytest.raises(DeviceLostError, match=reason):
            await take(taker, HASTY, bad)


@pytest.mark.parametrize("attack", ATTACKS)
@in_loop(TEST_S)
async def test_a_document_comes_from_the_next_source(attack: str, cluster: Cluster, tmp_path: Path) -> None:
    giver, hostile = stocked(tmp_path / "giver"), Hostile(*ATTACKS[attack])
    honest, digest = WeightsService("honest", giver, HASTY), next(iter(OBJECTS))

    def parse(data: bytes, expected: str) -> bytes:
        assert data == OBJECTS[expected]
        return data

    async with serving_as(cluster, "bad", hostile) as bad, serving_as(cluster, "good", honest) as good:
        sources = [SourceAddress(bad), SourceAddress(good)]
        fetching = fetch_document("taker", digest, parse, sources, HASTY)
        assert await within(LONG_S, fetching, "fetching hangs: it did not end") == OBJECTS[digest]


@in_loop(TEST_S)
async def test_a_slow_but_honest_source_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """A source at 512 KiB/s, four times the least rate."""

    class Slow(WeightsService):
        async def Read(self, request: pb.ReadRequest, context: Any) -> None:  # noqa: N802
            found = giver.locate(request.object.hex())
            assert found is not None
            data, at, began = found.path.read_bytes(), request.offset, time.monotonic()
            while at < len(data):
                await context.write(pb.ObjectChunk(data=data[at : at + 8192]))
                at += 8192
                await asyncio.sleep(max(0.0, began + (at - request.offset) / (512 << 10) - time.monotonic()))

    giver = stocked(tmp_path / "giver")
    taker = local_weights_at(tmp_path / "taker")
    async with serving_as(cluster, "slow", Slow("slow", giver, HASTY)) as slow:
        await take(taker, Hasty(stall_s=5.0, give_up_s=3.0, least_kib_s=128), slow)
    assert_whole(taker)


@in_loop(TEST_S)
async def test_a_caller_that_reads_nothing_takes_no_stream_for_ever(cluster: Cluster, tmp_path: Path) -> None:
    """It takes all streams of a source; when it has read nothing for a while, others get them."""
    giver, digest = stocked(tmp_path / "giver"), next(iter(OBJECTS))
    sleeper = cluster.member("sleeper", CertificateRole.AGENT)
    request = pb.ReadRequest(object=bytes.fromhex(digest)).SerializeToString()
    settings = HASTY.model_copy(update={"max_sending": 2, "give_up_s": 0.5})

    def attack(address: str) -> None:
        with raw_caller(address, sleeper, reply_window=0) as attacker:
            calls = [
                attacker.request("/flowedge.v1.Weights/Read", request) for _ in range(settings.max_sending)
            ]
            deadline = time.monotonic() + LONG_S
            for sending in (settings.max_sending, 0):
                while giver.traffic.sending != sending:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            assert not any(call in attacker.ended for call in calls)

    async with serving_as(cluster, "source", WeightsService("source", giver, settings)) as source:
        await asyncio.to_thread(attack, source)
