"""A client hears of its place in the queue, and of the time after which to try again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from flowedge.client import AsyncClient, Client, Recovery
from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import chunk, fail, finished, keep_alive, options_of, serving, started, waiting


def waits(request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateEvent]:
    assert options_of(request).priority == "batch"
    yield waiting(2, 8.5)
    yield keep_alive()
    yield waiting(1, 4.0)
    yield started(waited_s=3.25)
    yield chunk("x", 1)
    yield finished()


def test_each_place_is_told() -> None:
    async def ask(address: str) -> None:
        async with AsyncClient(address) as client:
            answer = client.generate("Hi", priority="batch", on_waiting=lambda *told: later.append(told))
            assert (await answer.result()).queue_s == 3.25

    places: list[tuple[int, float]] = []
    later: list[tuple[int, float]] = []
    with serving(waits) as (_, address), Client(address) as client:
        answer = client.generate("Hi", priority="batch", on_waiting=lambda *told: places.append(told))
        assert next(answer).text == "x"
        assert (answer.queue_position, answer.expected_s, answer.queue_s) == (0, None, 3.25)
        answer.result()
        asyncio.run(ask(address))
    assert places == later == [(2, 8.5), (1, 4.0)]


def test_a_request_that_has_begun_does_not_wait_again() -> None:
    def script(request: Any, context: Any) -> list[pb.GenerateEvent]:
        return [started(), waiting(1)]

    with (
        serving(script) as (_, address),
        Client(address) as client,
        pytest.raises(ProtocolError, match="'waiting' at the wrong place"),
    ):
        client.generate("Hi").result()


def test_the_time_after_which_to_try_again_reaches_the_client() -> None:
    def script(request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        yield waiting(1)
        fail(context, CapacityError.later("no room", 7.5))

    with serving(script) as (_, address), Client(address) as client:
        answer = client.generate("Hi")
        with pytest.raises(CapacityError, match="no room; try later, in about 8 s") as caught:
            answer.result()
    assert caught.value.retry_after_s == 7.5
    assert not answer.token_ids


def recovers(request: pb.GenerateRequest, context: Any) -> Iterator[pb.GenerateEvent]:
    yield started()
    yield chunk("a", 1)
    for state, expected_s in (("lost", 0.0), ("lost", 0.0), ("frozen", 2.5)):
        lost = pb.Recovering(device="v1", reason=f"it is {state}", state=state, expected_s=expected_s)
        yield pb.GenerateEvent(recovering=lost)
    yield keep_alive()
    yield chunk("b", 2)
    yield pb.GenerateEvent(recovering=pb.Recovering(device="v2", reason="of an older version"))
    yield finished()


def test_a_loss_is_told_once_for_each_state_and_when_the_answer_goes_on() -> None:
    told: list[Recovery | None] = []
    with serving(recovers) as (_, address), Client(address) as client:
        answer = client.generate("Hi", on_recovering=told.append).result()
    assert told == [
        Recovery("v1", "lost", "it is lost"),
        Recovery("v1", "frozen", "it is frozen", 2.5),
        None,
        Recovery("v2", "lost", "of an older version"),
    ]
    assert str(told[1]) == "device v1: it is frozen"
    assert answer.text == "ab"
