"""A network that drops what a client's connection carries, and takes new connections."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import pytest

from flowedge.client import AsyncClient
from flowedge.core.errors import DeadlineError
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import chunk, finished, keep_alive, serving, started
from tests.support.links import LinkProxy
from tests.support.loops import in_loop

SILENCE_S = 1.0
TEST_S = 60.0


def tell_in_two_calls(
    request: pb.GenerateRequest, context: grpc.ServicerContext
) -> Iterator[pb.GenerateEvent]:
    """Give the first token, and signs of life; the second token to one who has the first."""
    yield started()
    if request.answered:
        yield chunk("lo", 6)
        yield finished()
        return
    yield chunk("Hel", 5)
    while context.is_active():
        time.sleep(0.02)
        yield keep_alive()


@asynccontextmanager
async def behind_a_network() -> AsyncIterator[tuple[AsyncClient, LinkProxy]]:
    """Yield a client of a node, and the network between the two."""
    network = LinkProxy()
    with serving(tell_in_two_calls) as (_, address):
        port = await network.listen(int(address.rpartition(":")[2]))
        try:
            async with AsyncClient(f"127.0.0.1:{port}", silence_s=SILENCE_S) as client:
                yield client, network
        finally:
            await network.close()


@pytest.mark.parametrize("together", [1, 3])
@in_loop(TEST_S)
async def test_an_answer_goes_on_by_another_connection(together: int) -> None:
    """A TCP connection may stay silent for as long as the network was, and that long again."""
    async with behind_a_network() as (client, network):
        answers = [client.generate("Hi") for _ in range(together)]
        for answer in answers:
            assert (await anext(answer)).token_ids == (5,)
        assert network.accepted == 1
        network.abandon()
        for answer in answers:
            await answer.result()
            assert (answer.text, answer.token_ids) == ("Hello", [5, 6])
        assert network.accepted == 2


@in_loop(TEST_S)
async def test_a_device_is_asked_what_it_is_by_another_connection() -> None:
    async with behind_a_network() as (client, network):
        assert (await client.describe()).name == "fake"
        network.abandon()
        with pytest.raises(DeadlineError):
            await client.describe()
        assert (await client.describe()).name == "fake"
