"""Answers go on, with the tokens that they would have had, when a device of their pipeline is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import grpc
import pytest

from flowedge.client import Client, Generation, Recovery
from flowedge.core.errors import BadRequestError, DeviceLostError, OtherModelError
from flowedge.core.grammar import Grammar
from flowedge.network.grpc_status import from_status
from flowedge.v1 import generation_pb2 as pb
from flowedge.v1.generation_pb2_grpc import GenerationStub
from tests.support.breadth import dealt
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents, running
from tests.support.whole_answers import whole_answer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
STORY = "Tell me a long story about a hen and a goose."
LOST = r"device v1: .*; no pipeline has taken over within 1 s: .*device v1: .*its agent has ended"
SCHEMA = {"type": "object", "properties": {"eggs": {"type": "integer"}, "text": {"type": "string"}}}


@dataclass
class Shelf:
    """A draft node that keeps its pipeline, and its two stages."""

    draft_node: AgentProcess
    stages: list[AgentProcess]

    def client(self, **settings: Any) -> Client:
        client = Client(self.draft_node.address, **settings)
        client.await_ready(120)
        return client


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    with agents(["v1", "v2"]) as stages:
        settings: dict[str, dict[str, Any]] = {
            "pipeline": {"model": "bundled", "look_s": 0.05, "stages": [each.address for each in stages]},
            "deadlines": {"recovery_s": 60.0, "flapping_s": 0.0},
        }
        draft_node = AgentProcess("d0", "--no-advertise", port=free_port(), settings=settings)
        with running(draft_node):
            yield Shelf(draft_node, list(stages))


def broken_off(
    client: Client, lose: Callable[[], None], at: int, **options: Any
) -> tuple[Generation, list[Recovery | None]]:
    """Return an answer, on whose way `lose` is called once `at` tokens have come, and what was told of it."""
    told: list[Recovery | None] = []
    answer, lost = client.generate(STORY, on_recovering=told.append, **options), False
    for _ in answer:
        if not lost and len(answer.token_ids) >= at:
            lost = True
            lose()
    assert lost
    return answer, told


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 160, "ignore_eos": True},
    "T1": {"max_new_tokens": 160, "ignore_eos": True, "temperature": 1.0, "top_p": 0.9, "seed": 36},
    "schema": {"max_new_tokens": 120, "temperature": 1.0, "seed": 5, "grammar": Grammar.json_schema(SCHEMA)},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("options", "device"),
    dealt(product(OPTIONS, ["v2", "d0"]), {("T1", "v2"), ("schema", "d0")}.__contains__),
)
def test_a_device_is_killed(shelf: Shelf, options: str, device: str) -> None:
    agent = shelf.draft_node if device == "d0" else shelf.stages[1]

    def kill() -> None:
        agent.kill()
        agent.start()
        agent.await_address()

    with shelf.client() as client:
        whole = whole_answer(client, STORY, **OPTIONS[options])
        answer, told = broken_off(client, kill, len(whole.token_ids) // 4, **OPTIONS[options])
    assert answer.token_ids == whole.token_ids
    assert (answer.text, answer.finish_reason) == (whole.text, whole.finish_reason)
    assert answer.recovering is None
    assert told[0] is not None
    assert told[-1] is None


@pytest.mark.proof
def test_two_losses_on_the_way_of_one_answer(shelf: Shelf) -> None:
    """The second device is lost while the answer recovers from the loss of the first."""

    def kill() -> None:
        for agent in (shelf.stages[0], shelf.draft_node):
            agent.kill()
            agent.start()
            agent.await_address()

    with shelf.client() as client:
        whole = whole_answer(client, STORY, **OPTIONS["T1"])
        answer, _ = broken_off(client, kill, 20, **OPTIONS["T1"])
    assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)


def events_of(shelf: Shelf, request: pb.GenerateRequest) -> list[pb.GenerateEvent]:
    with grpc.insecure_channel(shelf.draft_node.address) as channel:
        try:
            events = list(GenerationStub(channel).Generate(request, timeout=60))
        except grpc.RpcError as error:
            raise from_status(error, shelf.draft_node.address) from error
    return [event for event in events if event.WhichOneof("body") != "keep_alive"]


def test_the_rest_of_an_answer_that_had_ended_is_its_end(shelf: Shelf) -> None:
    """The stream broke between the last token and the end."""
    with shelf.client() as client:
        whole = client.generate(STORY, max_new_tokens=8, ignore_eos=True).result()
    request = pb.GenerateRequest(prompt=STORY, options='{"max_new_tokens": 8, "ignore_eos": true, "seed": 1}')
    started, *_ = events_of(shelf, request)
    request.answers_as = started.started.answers_as
    request.answered[:] = whole.token_ids
    again, finished = events_of(shelf, request)
    assert again.started == started.started or again.started.prompt_ids == started.started.prompt_ids
    assert finished.finished.reason == "length"


def test_what_cannot_be_the_beginning_of_the_answer_is_refused(shelf: Shelf) -> None:
    def ask(answered: list[int], **options: Any) -> None:
        request = pb.GenerateRequest(prompt=STORY, answered=answered, options=json.dumps(options))
        events_of(shelf, request)

    with shelf.client(), pytest.raises(BadRequestError, match="3 tokens are answered already"):
        ask([1, 2, 3], max_new_tokens=2)
    with pytest.raises(BadRequestError, match="an answered token is 999999"):
        ask([999_999])
    with pytest.raises(BadRequestError, match="give the one that Started had"):
        ask([1], temperature=1.0)
    other = pb.GenerateRequest(prompt=STORY, answered=[1], answers_as="another model")
    with pytest.raises(OtherModelError, match="was begun with another model"):
        events_of(shelf, other)


def test_a_loss_that_nobody_makes_good_ends_the_answer_in_time() -> None:
    with agents(["v1"]) as (stage,):
        settings: dict[str, dict[str, Any]] = {
            "pipeline": {"model": "bundled", "look_s": 0.05, "stages": [stage.address]},
            "deadlines": {"recovery_s": 1.0},
        }
        with agents(["d0"], settings=settings) as (draft_node,), Client(draft_node.address) as client:
            client.await_ready(120)
            with pytest.raises(
                DeviceLostError,
                match=LOST,
            ):
                broken_off(client, stage.kill, 5, max_new_tokens=1500, ignore_eos=True)
