"""The steps that sessions of one pipeline share."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flowedge.strategies.pipeline_steps import AwaitedLayer, PipelineSteps


@dataclass(eq=False)
class Stepper:
    """A session that has a segment to send, waits for a layer, or neither."""

    may_send_segment: bool = True
    awaits_layer: bool = False
    awaited: AwaitedLayer | None = None
    sent: float = 1.0
    next_s: float = 1.0

    def expected(self) -> tuple[float, float]:
        assert self.may_send_segment, "it is asked where there is something to send"
        return self.sent, self.next_s


def joined(steps: PipelineSteps, count: int, stages: int) -> list[Stepper]:
    sessions = [Stepper() for _ in range(count)]
    for session in sessions:
        steps.join(session, stages)
    return sessions


def asked(steps: PipelineSteps, sessions: list[Stepper]) -> list[bool]:
    """Ask all sessions once."""
    return [steps.joins_step(session) for session in sessions]


def test_a_step_takes_a_segment_of_every_session_that_has_one():
    steps = PipelineSteps()
    sessions = joined(steps, 3, stages=2)
    sessions[1].may_send_segment = False
    assert asked(steps, sessions) == [True, False, True]
    assert steps.in_flight == 1


def test_as_many_steps_are_in_flight_as_there_are_stages():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=2)
    assert [asked(steps, sessions) for _ in range(3)] == [[True, True], [True, True], [False, False]]
    steps.take_back(sessions[0])
    assert asked(steps, sessions) == [False, False], "the other session's segment has not returned"
    steps.take_back(sessions[1])
    assert asked(steps, sessions) == [True, True]


def test_a_step_waits_for_a_session_whose_segment_is_drafted():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=2)
    sessions[0].may_send_segment, sessions[0].awaits_layer = False, True
    assert asked(steps, sessions) == [False, False]
    sessions[0].may_send_segment, sessions[0].awaits_layer = True, False
    assert asked(steps, sessions) == [True, True]


@pytest.mark.parametrize(
    ("layers", "sent", "waits"),
    [
        ((0.9, 0.9), (0.3, 0.3), True),  # 1.8 tokens 0.8 s earlier, and 0.6 tokens 0.2 s later
        ((0.9, None), (0.3, 0.3), True),  # for the layer of the other
        ((0.1, None), (2.0, 2.0), False),
        ((0.0, 0.0), (0.1, 0.1), False),  # drafting does not limit the speed
        ((None, None), (0.1, 0.1), False),
    ],
)
def test_a_step_waits_for_layers_that_bring_more_than_its_segments_lose(layers, sent, waits):
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=2)
    for session, tokens, of_segment in zip(sessions, layers, sent, strict=True):
        session.awaited = None if tokens is None else AwaitedLayer(0.2, tokens)
        session.sent = of_segment
    assert asked(steps, sessions) == [not waits] * 2
    for session in sessions:
        session.awaited = None  # the layers have come
    assert asked(steps, sessions) == [True, True]


def test_a_session_alone_decides_for_itself_what_it_waits_for():
    steps = PipelineSteps()
    (session,) = joined(steps, 1, stages=1)
    session.awaited, session.sent = AwaitedLayer(0.2, 5.0), 0.1
    assert asked(steps, [session]) == [True]


def test_a_step_does_not_wait_for_a_session_that_ends():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=1)
    sessions[0].awaits_layer, sessions[0].may_send_segment = True, False
    assert asked(steps, sessions) == [False, False]
    steps.leave(sessions[0])
    assert asked(steps, sessions[1:]) == [True]


def test_a_session_that_ends_leaves_the_steps_in_flight():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=1)
    assert asked(steps, sessions) == [True, True]
    steps.take_back(sessions[0])
    steps.leave(sessions[1])
    assert steps.in_flight == 0
    assert asked(steps, sessions[:1]) == [True]


def test_the_levels_of_a_session_that_misses_hold_no_step():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=2)
    sessions[1].may_send_segment = False
    asked(steps, sessions)
    sessions[1].may_send_segment = True
    asked(steps, sessions)
    assert asked(steps, sessions) == [False, False]
    steps.flush(sessions[0])
    assert steps.in_flight == 1, "the level of the other session goes on"
    assert asked(steps, sessions) == [True, True]


def test_a_session_that_joins_in_a_round_sends_with_the_next_step():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=3)
    assert steps.joins_step(sessions[0])
    late = Stepper()
    steps.join(late, 3)
    assert not steps.joins_step(late)
    assert steps.joins_step(sessions[1])
    assert steps.in_flight == 1
    assert asked(steps, [late, *sessions]) == [True, True, True], "whatever the order"


def test_a_level_that_is_gone_when_its_session_is_asked_leaves_no_step_behind():
    steps = PipelineSteps()
    sessions = joined(steps, 2, stages=1)
    first = steps.joins_step(sessions[0])
    steps.leave(sessions[0])
    sessions[1].may_send_segment = False
    assert [first, steps.joins_step(sessions[1])] == [True, False]
    sessions[1].may_send_segment = True
    assert asked(steps, sessions[1:]) == [True]
