"""Objects come from any device that has them, resume after a cut, and match their digests."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest

from flowedge.core.errors import BadRequestError, CapacityError, DeviceError, DeviceLostError
from flowedge.device.disk_cache.file_range import FileRange, FileState
from flowedge.network.deadline import within
from flowedge.network.grpc_status import from_status
from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.fetch.fetcher import Fetched, Fetcher
from flowedge.weights.fetch.progress import FetchProgress
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import WeightsClient
from flowedge.weights.local_weights import LocalWeights
from tests.weights.servers import QUICK, local_weights_at, serving

OBJECTS = {
    hashlib.sha256(data).hexdigest(): data
    for data in (random.Random(i).randbytes(200_000 + i) for i in range(8))
}
SIZES = {digest: len(data) for digest, data in OBJECTS.items()}
TOTAL = sum(SIZES.values())


def stocked(root: Path, digests: Sequence[str] = tuple(OBJECTS)) -> LocalWeights:
    local = local_weights_at(root)
    for digest in digests:
        assert local.store.put(OBJECTS[digest]) == digest
    return local


async def take(
    local: LocalWeights, addresses: Sequence[str], draft_node: str = "", device: str = "taker"
) -> Fetched:
    async def on_progress(progress: FetchProgress) -> None:
        assert 0 <= progress.done <= progress.total == TOTAL

    sources = [SourceAddress(address, address == draft_node) for address in addresses]
    return await Fetcher(device, local, SIZES, sources, QUICK, on_progress).run()


def assert_whole(local: LocalWeights) -> None:
    assert {digest: local.store.read(digest) for digest in OBJECTS} == OBJECTS
    assert not list((local.store.limits.root / "partial").iterdir())


def test_from_two_devices_that_have_a_part_each(tmp_path: Path) -> None:
    async def run() -> None:
        taker, digests = local_weights_at(tmp_path / "taker"), list(OBJECTS)
        halves = [stocked(tmp_path / "one", digests[:5]), stocked(tmp_path / "two", digests[4:])]
        async with serving(halves[0]) as (one, _), serving(halves[1]) as (two, _):
            fetched = await take(taker, [one, two])
            assert sum(fetched.received.values()) == taker.traffic.received == TOTAL
            assert sum(half.traffic.sent for half in halves) == TOTAL
            assert min(fetched.received.values()) > 0
            again = await take(taker, [one, two])
        assert again.received == {} and again.cached_before == TOTAL
        assert_whole(taker)

    asyncio.run(run())


def test_a_link_that_is_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        taker = local_weights_at(tmp_path / "taker")
        async with serving(stocked(tmp_path / "giver"), cuts=6, cut_after=70_000) as (address, service):
            await take(taker, [address])
        assert taker.traffic.received == TOTAL, "bytes were sent twice"
        assert sum(offset > 0 for offset in service.offsets) == 6
        assert_whole(taker)

    asyncio.run(run())


def test_a_device_that_dies_and_comes_back(tmp_path: Path) -> None:
    async def run() -> None:
        taker, giver = local_weights_at(tmp_path / "taker"), stocked(tmp_path / "giver")
        async with AsyncExitStack() as first:
            address, service = await first.enter_async_context(serving(giver, cuts=4, cut_after=70_000))
            taking = asyncio.create_task(take(taker, [address]))
            await within(10, service.asked.wait(), "nothing was asked for")
        async with serving(giver, port=int(address.rpartition(":")[2])):
            await taking
        assert_whole(taker)

    asyncio.run(run())


def test_wrong_bytes_are_thrown_away_and_come_from_another(tmp_path: Path) -> None:
    async def run() -> None:
        taker, liar = local_weights_at(tmp_path / "taker"), local_weights_at(tmp_path / "liar")
        lie = tmp_path / "lie"
        lie.write_bytes(os.urandom(300_000))
        state = FileState.of(lie)
        ranges = {digest: FileRange(lie, 0, size, state) for digest, size in SIZES.items()}
        liar.give(b"a document", ranges)
        async with serving(liar) as (bad, _):
            with pytest.raises(DeviceLostError, match=r"objects are missing.*damaged|does not have"):
                await take(taker, [bad])
            async with serving(stocked(tmp_path / "giver")) as (good, _):
                await take(taker, [bad, good])
        assert_whole(taker)

    asyncio.run(run())


def test_a_giver_notices_damage_of_its_own_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        taker, giver = local_weights_at(tmp_path / "taker"), stocked(tmp_path / "giver")
        for digest in list(OBJECTS)[:2]:
            path = giver.store.path(digest)
            path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
        async with serving(giver) as (address, _):
            with pytest.raises(DeviceLostError, match="2 of 8 objects are missing"):
                await take(taker, [address])
            assert giver.store.size(next(iter(OBJECTS))) is None
            for digest in list(OBJECTS)[:2]:
                giver.store.put(OBJECTS[digest])
            await take(taker, [address])
        assert_whole(taker)

    asyncio.run(run())


def test_two_agents_of_a_host_fetch_into_one_cache_once(tmp_path: Path) -> None:
    async def run() -> None:
        takers = [local_weights_at(tmp_path / "taker") for _ in range(2)]
        giver = stocked(tmp_path / "giver")
        async with serving(giver) as (address, _):
            await asyncio.gather(*(take(taker, [address]) for taker in takers))
        assert sum(taker.traffic.received for taker in takers) == TOTAL
        assert_whole(takers[0])

    asyncio.run(run())


def test_devices_give_each_other_what_they_have(tmp_path: Path) -> None:
    """The draft node, which has everything, is not asked for anything."""

    async def run() -> None:
        thirds = [list(OBJECTS)[index::3] for index in range(3)]
        takers = [stocked(tmp_path / f"taker{index}", third) for index, third in enumerate(thirds)]
        giver = stocked(tmp_path / "giver")
        async with AsyncExitStack() as stack:
            draft, _ = await stack.enter_async_context(serving(giver))
            peers = [(await stack.enter_async_context(serving(taker)))[0] for taker in takers]
            await asyncio.gather(
                *(
                    take(taker, [draft, *(peer for peer in peers if peer != own)], draft, own)
                    for taker, own in zip(takers, peers, strict=True)
                )
            )
        for taker in takers:
            assert_whole(taker)
        assert giver.traffic.sent == 0
        assert sum(taker.traffic.sent for taker in takers) == 2 * TOTAL

    asyncio.run(run())


def test_what_does_not_fit_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        taker = local_weights_at(tmp_path / "taker", TOTAL - 1)
        kept = taker.store.put(b"kept")
        async with serving(stocked(tmp_path / "giver")) as (address, _):
            with pytest.raises(CapacityError, match="--cache-gib"):
                await take(taker, [address])
        assert taker.store.read(kept) == b"kept" and taker.traffic.received == 0

    asyncio.run(run())


def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceLostError, match=r"8 of 8 objects are missing.*127\.0\.0\.1:1"):
        asyncio.run(take(local_weights_at(tmp_path), ["127.0.0.1:1"]))
    with pytest.raises(DeviceLostError, match="no device is known"):
        asyncio.run(take(local_weights_at(tmp_path), []))


@pytest.mark.parametrize(
    ("name", "offset", "error", "message"),
    [
        (b"short", 0, BadRequestError, "32 bytes"),
        (b"../../../../../../../etc/passwd\0", 0, DeviceError, "does not have"),
        (bytes(32), 0, DeviceError, "does not have"),
        (bytes.fromhex(next(iter(OBJECTS))), 1 << 60, DeviceError, "does not have"),
    ],
)
def test_garbage_is_answered_by_an_error(
    tmp_path: Path, name: bytes, offset: int, error: type[Exception], message: str
) -> None:
    async def run() -> None:
        async with (
            serving(stocked(tmp_path)) as (address, _),
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = rpc.WeightsStub(channel).Read(pb.ReadRequest(object=name, offset=offset))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            raised = from_status(caught.value, address)
            assert isinstance(raised, error) and message in str(raised)

    asyncio.run(run())


def test_a_device_sends_so_many_streams_and_no_more(tmp_path: Path) -> None:
    async def run() -> None:
        giver = stocked(tmp_path)
        async with serving(giver, settings=QUICK.model_copy(update={"max_sending": 0})) as (address, _):
            client = WeightsClient(address, QUICK)
            with pytest.raises(CapacityError, match="streams already"):
                await client.read_all(next(iter(OBJECTS)), TOTAL)
            await client.close()

    asyncio.run(run())
