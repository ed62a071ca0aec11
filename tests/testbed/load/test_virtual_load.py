"""The clients of a virtual pipeline, on a real model with simple costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge_testbed.load.arrivals import (
    Arrivals,
    ClosedLoop,
    LoadAnswer,
    PoissonArrivals,
    RequestList,
    StaticBatches,
)
from flowedge_testbed.load.virtual_load import VirtualLoad
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.run_backends import NoText

CLIENTS = 3
REQUESTS = RequestList(((5, 6, 7), (9, 8, 7, 6)), SamplingParams(1.0, seed=1), (3, 9))


@pytest.fixture
def pipeline(pair: ModelSet) -> VirtualPipeline:
    return virtual_pipeline(
        pair.checkpoint, (4, 4), FixedCosts(), drafter=pair.drafter, head=pair.head, make_text=NoText,
        blocks=pair.blocks((4, 4)),
    )  # fmt: skip


def opened(number: int, strategy: str = "autoregressive") -> Request:
    asked = REQUESTS.request(number)
    return Request(f"load-{number}", asked.prompt, asked.sampling, asked.max_new_tokens, strategy=strategy)


def answered(pipeline: VirtualPipeline, arrivals: Arrivals, counted: range) -> dict[int, LoadAnswer]:
    load = VirtualLoad(pipeline, arrivals, opened)
    load.run(counted)
    return load.answers


def open_requests(answers: dict[int, LoadAnswer], until: float) -> Iterator[tuple[float, int]]:
    """Yield how many requests are open from each time on, up to the end of the last counted answer."""
    changes: dict[float, int] = {}
    for answer in answers.values():
        changes[answer.arrival.begins] = changes.get(answer.arrival.begins, 0) + 1
        if answer.ended_s is not None:
            changes[answer.ended_s] = changes.get(answer.ended_s, 0) - 1
    now_open = 0
    for at in sorted(changes):
        if at < until:
            now_open += changes[at]
            yield at, now_open


def last_end(answers: dict[int, LoadAnswer], counted: range) -> float:
    ends = [answers[number].ended_s for number in counted]
    assert all(end is not None for end in ends)
    return max(end for end in ends if end is not None)


def test_a_closed_loop_keeps_as_many_requests_open_as_there_are_clients(pipeline: VirtualPipeline) -> None:
    counted = range(3, 9)
    answers = answered(pipeline, ClosedLoop(REQUESTS, CLIENTS, 0.0), counted)
    end = last_end(answers, counted)
    assert {count for _, count in open_requests(answers, end)} == {CLIENTS}
    for number in counted:
        assert len(answers[number].tokens) == REQUESTS.request(number).max_new_tokens
        assert answers[number].prompt_tokens == len(REQUESTS.request(number).prompt)
    ended = [answer.ended_s for answer in answers.values() if answer.ended_s is not None]
    begun = sorted(answer.arrival.begins for answer in answers.values())
    assert begun == [0.0] * CLIENTS + sorted(ended), "each answer is followed by the next request"


def test_static_batches_leave_clients_waiting(pipeline: VirtualPipeline) -> None:
    counted = range(3, 9)
    answers = answered(pipeline, StaticBatches(REQUESTS, CLIENTS, 0.0), counted)
    counts = [count for _, count in open_requests(answers, last_end(answers, counted))]
    assert counts == [3, 2, 1] * 3
    begun = [answers[number].arrival.begins for number in range(9)]
    assert begun[0:3] == [0.0] * 3
    for first in (3, 6):
        assert begun[first : first + 3] == [last_end(answers, range(first - 3, first))] * 3


def test_requests_arrive_at_their_time_whatever_is_open(pipeline: VirtualPipeline) -> None:
    arrivals = PoissonArrivals(REQUESTS, 2.0)
    answers = answered(pipeline, arrivals, range(1, 6))
    (arrival,) = PoissonArrivals(REQUESTS, 2.0).first()
    for number in range(6):
        assert answers[number].arrival == arrival
        assert answers[number].token_s[0] > arrival.begins
        (arrival,) = arrivals.begun(arrival)


def test_the_time_in_the_draft_node_s_queue_is_told(pipeline: VirtualPipeline) -> None:
    """With room for one session, the second of two clients waits until the first is answered."""
    admission = pipeline.draft_node.admission
    admission.limits = replace(admission.limits, sessions=1)
    answers = answered(pipeline, ClosedLoop(REQUESTS, 2, 0.0), range(2))
    assert answers[0].admitted_s is None, "it did not wait"
    assert answers[1].admitted_s == answers[0].token_s[-1], "when the first has its last token"
    assert answers[1].token_s[0] > answers[0].token_s[-1]


@pytest.mark.parametrize("clients", [True, False])
def test_requests_without_room_are_refused_and_the_load_goes_on(
    pipeline: VirtualPipeline, clients: bool
) -> None:
    """With room for one session and one that waits, some of many requests find none."""
    admission = pipeline.draft_node.admission
    admission.limits = replace(admission.limits, sessions=1, queue_length=1)
    arrivals = ClosedLoop(REQUESTS, 4, 0.0) if clients else PoissonArrivals(REQUESTS, 10.0)
    answers = answered(pipeline, arrivals, range(8))
    refused = {number for number in range(8) if answers[number].refused}
    assert 0 < len(refused) < 8
    assert all(bool(answers[number].token_s) == (number not in refused) for number in range(8))


def test_a_request_that_fails_ends_the_load(pipeline: VirtualPipeline) -> None:
    load = VirtualLoad(
        pipeline, ClosedLoop(REQUESTS, 1, 0.0), lambda number: opened(number, strategy="pipespec moon")
    )
    with pytest.raises(BadRequestError, match="pipespec moon"):
        load.run(range(1))


def test_a_load_that_cannot_end_is_an_error(pipeline: VirtualPipeline) -> None:
    with pytest.raises(DeadlineError, match="1 requests of a load are not answered: the pipeline"):
        answered(pipeline, ClosedLoop(REQUESTS, 0, 0.0), range(1))
