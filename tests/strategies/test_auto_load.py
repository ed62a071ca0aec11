"""How sessions of `auto` share the rows of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.request import PRIORITIES, Request
from flowedge.core.sampling import SamplingParams
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.load import PRIORITY_WEIGHTS, PipelineLoad, RowDemand, Share
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.auto.speed import Speed
from flowedge.strategies.events import Prefilled
from flowedge.strategies.registry import session_strategy


def demand(*probabilities: float, weight: float = 1.0, tokens_per_s: float = 1.0) -> RowDemand:
    return RowDemand(np.array(probabilities), Speed(tokens_per_s, 0.0), weight)


def load_of(*demands: RowDemand) -> PipelineLoad:
    load = PipelineLoad()
    for each in demands:
        load.join(each)
    return load


def test_a_session_alone_has_every_row():
    own = demand(1.0, 0.5, 0.2)
    load = load_of(own)
    assert not load.shared
    assert load.probabilities() is own.probabilities
    share = load.share_of(own, load.probabilities(), 7, 3)
    assert (share.rows, share.others, share.least) == (7, 0, 0)


def test_the_likeliest_nodes_of_all_sessions_compete():
    sure, doubtful = demand(1.0, 0.9, 0.8, 0.7), demand(1.0, 0.3, 0.1, 0.05)
    load = load_of(sure, doubtful)
    assert load.shared
    assert load.probabilities().tolist() == [1.0, 1.0, 0.9, 0.8, 0.7, 0.3, 0.1, 0.05]
    assert load.tokens_per_s == 2.0
    five = (
        load.share_of(sure, load.probabilities(), 5, 1),
        load.share_of(doubtful, load.probabilities(), 5, 1),
    )
    assert [(share.rows, share.others) for share in five] == [(4, 1), (2, 3)], "half a share is two rows"


def test_no_session_gets_less_than_half_of_an_equal_share():
    hopeless = demand(1.0, *[0.001] * 63)
    others = [demand(1.0, *[0.9] * 63) for _ in range(3)]
    load = load_of(hopeless, *others)
    share = load.share_of(hopeless, load.probabilities(), 64, 1)
    assert share.least == share.rows == 8
    assert load.share_of(others[0], load.probabilities(), 64, 1).rows > 16


def test_weights_shift_rows_and_the_least_share():
    urgent, patient = demand(*[0.5] * 8, weight=2.0), demand(*[0.5] * 8, weight=0.5)
    load = load_of(urgent, patient)
    shares = (
        load.share_of(urgent, load.probabilities(), 8, 1),
        load.share_of(patient, load.probabilities(), 8, 1),
    )
    assert shares[0].rows == 8
    assert shares[1].rows == shares[1].least == 1
    assert shares[0].least == 4


def test_segments_in_flight_divide_a_share():
    own, other = demand(*[0.9] * 8), demand(*[0.1] * 8)
    load = load_of(own, other)
    assert load.share_of(own, load.probabilities(), 2, 4).rows == 2


def test_the_least_share_of_a_session_is_worth_sending_however_unlikely_it_is():
    of_plan = np.array([0.1, 0.2, 0.3, 0.4])
    assert Share(3, 5, 2).thresholds(of_plan, 1).tolist() == [0.0, 0.0, 0.3, 0.4]
    assert Share(3, 5, 0).thresholds(of_plan, 1).tolist() == of_plan.tolist()
    assert Share(3, 5, 0).thresholds(of_plan, 0).tolist() == [0.0, 0.2, 0.3, 0.4], "a session goes on"
    assert of_plan[0] == 0.1


def test_a_session_is_not_alone_while_the_prompt_of_another_is_on_its_way():
    load, own, other = PipelineLoad(), demand(1.0), demand(1.0)
    assert load.alone
    load.open(own)
    assert load.alone
    load.open(other)
    assert not load.alone
    assert not load.shared, "neither decodes"
    load.leave(other)
    assert load.alone
    load.leave(other)
    assert load.alone


def test_who_leaves_is_forgotten():
    own, other = demand(1.0), demand(1.0)
    load = load_of(own, other)
    load.leave(other)
    assert not load.shared
    load.leave(other)
    assert load.sessions == 1


def test_sessions_join_when_their_prompt_is_through_and_leave_when_they_end():
    measured = MeasuredPipeline()
    request = Request("s", (1, 2), SamplingParams(), 9, strategy="auto")
    sessions = [session_strategy(request, measured) for _ in range(3)]
    sessions[2].end()
    for number, session in enumerate(sessions[:2], 1):
        session.handle(Prefilled(2, 5, 1, stages=2))
        assert measured.load.sessions == number
    for session in sessions:
        session.end()
    assert measured.load.sessions == 0


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_priority_is_a_weight(priority):
    measured = MeasuredPipeline()
    request = Request("s", (1, 2), SamplingParams(), 9, strategy="auto", priority=priority)
    session = session_strategy(request, measured)
    assert isinstance(session, Auto)
    session.handle(Prefilled(2, 5, 1, stages=2))
    (joined,) = measured.load._demands  # noqa: SLF001
    assert joined.weight == PRIORITY_WEIGHTS[priority]
