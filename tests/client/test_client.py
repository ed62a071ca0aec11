"""The Python client against a draft node with scripted events."""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import flowedge
from flowedge.client import AsyncClient, Chunk, Client
from flowedge.core import errors as core_errors
from flowedge.core.errors import (
    BadRequestError,
    CapacityError,
    DeadlineError,
    DeviceLostError,
    FlowEdgeError,
    ProtocolError,
)
from flowedge.core.generate_options import GenerateOptions
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import (
    EndlessAnswer,
    chunk,
    fail,
    finished,
    keep_alive,
    options_of,
    serving,
    started,
)


def good(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
    seed = options_of(request).seed
    yield started(99 if seed is None else seed)
    yield chunk("Hel", 5)
    yield keep_alive()
    yield chunk("lo", 6, 7)
    yield finished()


def silent(request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
    yield started()
    yield chunk("Hel", 5)
    while context.is_active():
        time.sleep(0.05)


def alive(request: Any, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
    yield started()
    while context.is_active():
        time.sleep(0.05)
        yield keep_alive()


def test_an_answer_streams_and_is_complete_at_the_end() -> None:
    with serving(good) as (node, address), flowedge.Client(address) as client:
        generation = client.generate("Hi", temperature=0.5, top_k=3, stop=["x"], max_new_tokens=9)
        assert next(generation) == Chunk((5,), "Hel")
        assert generation.finish_reason is None
        assert list(generation) == [Chunk((6, 7), "lo")]
    assert (generation.text, generation.token_ids) == ("Hello", [5, 6, 7])
    assert (generation.seed, generation.prompt_ids) == (99, (1, 2))
    assert (generation.finish_reason, generation.statistics) == ("eos", {"rounds": 2})
    (request,) = node.requests
    assert request.prompt == "Hi"
    options = GenerateOptions(max_new_tokens=9, temperature=0.5, top_k=3, stop=("x",))
    assert options_of(request) == options


def test_token_ids_and_a_seed_go_as_they_are() -> None:
    with serving(good) as (node, address), Client(address) as client:
        assert client.generate(prompt_ids=[3, 4], seed=0).result().seed == 0
    assert list(node.requests[0].prompt_ids.ids) == [3, 4]


def test_the_async_client_does_the_same() -> None:
    async def ask(address: str) -> tuple[list[Chunk], str, str]:
        async with AsyncClient(address) as client:
            device = await client.describe()
            generation = client.generate("Hi")
            chunks = [item async for item in generation]
            return chunks, generation.text, device.name

    with serving(good) as (_, address):
        assert asyncio.run(ask(address)) == ([Chunk((5,), "Hel"), Chunk((6, 7), "lo")], "Hello", "fake")


def test_describe() -> None:
    with serving(good) as (_, address), Client(address) as client:
        device = client.describe()
    assert (device.name, device.role, device.stage_addresses) == ("fake", "draft node", ("a:1",))
    assert device.layers == (0, 3)


def test_a_silent_node_is_lost_and_named() -> None:
    with serving(silent) as (_, address), Client(address, silence_s=0.4, recovery_s=0) as client:
        generation = client.generate("Hi")
        assert next(generation).text == "Hel"
        with pytest.raises(DeviceLostError, match=r"for 0\.4 s, the limit given by silence_s") as caught:
            next(generation)
    assert caught.value.device == address


def test_signs_of_life_keep_a_slow_node_but_not_beyond_the_deadline() -> None:
    with (
        serving(alive) as (_, address),
        Client(address, silence_s=1.0) as client,
        pytest.raises(DeadlineError),  # a node that gives no sign of life would be lost before
    ):
        client.generate("Hi", timeout_s=2.0).result()


def test_nobody_there() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(DeviceLostError, match=r"127\.0\.0\.1:1"):
            client.generate("Hi").result()
        expected = "device 127.0.0.1:1: the connection failed: nothing listens there"
        with pytest.raises(DeviceLostError, match=f"^{re.escape(expected)}"):
            client.describe()


def test_the_url_of_a_gateway_is_no_agent() -> None:
    with pytest.raises(BadRequestError, match=r"is a URL, as a gateway .*give the address of an agent"):
        Client("http://127.0.0.1:8000")


def test_a_name_that_no_machine_has() -> None:
    with (
        Client("no-such-machine.invalid:7070") as client,
        pytest.raises(DeviceLostError, match="has this name"),
    ):
        client.describe()


@pytest.mark.parametrize(
    "error",
    [
        BadRequestError("top_k is wrong"),
        CapacityError("prompt 10 and 9 new tokens are more than 16"),
        DeviceLostError("v2", "no sign of life for 3 s"),
        DeadlineError("too late"),
    ],
)
def test_errors_of_the_node_come_through_typed(error: FlowEdgeError) -> None:
    def failing(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
        yield started()
        fail(context, error)

    with serving(failing) as (_, address), Client(address) as client, pytest.raises(type(error)) as caught:
        client.generate("Hi", request_id="r-1").result()
    assert str(caught.value) == f"{error} (request r-1)"
    assert type(caught.value) is type(error)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([chunk("x", 1)], ProtocolError),
        ([started(), started()], ProtocolError),
        ([started(), pb.GenerateEvent()], ProtocolError),
        ([started(), finished(statistics="{")], ProtocolError),
        ([started(), finished(statistics="[]")], ProtocolError),
        ([started(), chunk("x", 1)], DeviceLostError),
        ([], DeviceLostError),
    ],
    ids=["no start", "two starts", "no body", "no JSON", "no object", "no end", "nothing"],
)
def test_events_out_of_place_are_refused(events: list[pb.GenerateEvent], expected: type[Exception]) -> None:
    with (
        serving(lambda request, context: events) as (_, address),
        Client(address, recovery_s=0) as client,
        pytest.raises(expected),
    ):
        client.generate("Hi").result()


def test_an_address_is_checked() -> None:
    with pytest.raises(BadRequestError, match="host:port"):
        Client("somewhere")


def test_leaving_an_answer_ends_its_call() -> None:
    endless = EndlessAnswer()
    with serving(endless) as (_, address), Client(address) as client:
        generation = client.generate("Hi")
        next(generation)
        del generation
        gc.collect()
        assert endless.ended.wait(5)


def test_two_answers_of_one_client_do_not_mix() -> None:
    with serving(good) as (_, address), Client(address) as client:
        first, second = client.generate("a", seed=1), client.generate("b", seed=2)
        pairs = list(zip(first, second, strict=True))
    assert all(one == other for one, other in pairs)
    assert (first.seed, second.seed) == (1, 2)


def test_errors_are_those_of_the_package() -> None:
    assert flowedge.DeviceLostError is DeviceLostError
    assert flowedge.FlowEdgeError is FlowEdgeError
    for name in flowedge.__all__:
        assert getattr(flowedge, name) is not None
    with pytest.raises(AttributeError, match="DeviceGoneError"):
        flowedge.DeviceGoneError  # noqa: B018
    errors = {
        name for name, kind in vars(core_errors).items() if inspect.isclass(kind) and name.endswith("Error")
    }
    assert errors <= set(flowedge.__all__)
