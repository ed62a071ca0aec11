"""The Weights service, towards callers that do not take what they ask for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc.aio

from flowedge.v1 import weights_pb2 as pb
from flowedge.v1 import weights_pb2_grpc as rpc
from flowedge.weights.local_weights import Traffic
from tests.weights.servers import local_weights_at, serving

LONG_S = 30.0  # after which a stream is held to take its place for ever


def test_a_caller_that_reads_nothing_does_not_keep_its_place(tmp_path: Path) -> None:
    async def run() -> None:
        local = local_weights_at(tmp_path)
        digest = local.store.put(bytes(32 << 20))
        async with serving(local) as (address, _), grpc.aio.insecure_channel(address) as channel:
            unread = rpc.WeightsStub(channel).Read(pb.ReadRequest(object=bytes.fromhex(digest)))
            await until(local.traffic, 1)
            await until(local.traffic, 0)
            assert not unread.done()
            assert local.traffic.sent < 32 << 20
            unread.cancel()

    asyncio.run(run())


async def until(traffic: Traffic, sending: int) -> None:
    deadline = time.monotonic() + LONG_S
    while traffic.sending != sending:
        assert time.monotonic() < deadline, f"{traffic.sending} streams are sent, not {sending}"
        await asyncio.sleep(0.05)
