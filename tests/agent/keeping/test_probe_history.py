"""Announcements without an agent behind do not keep a pipeline from its agents."""

from __future__ import annotations

import random

from flowedge.agent.keeping.idle_agents import (
    FIRST_PAUSE_S,
    MOST_BAD,
    MOST_NEW,
    MOST_PAUSE_S,
    Candidate,
    ProbeHistory,
)

FAKES = [Candidate(f"fake{number}", f"10.0.1.1:{number + 1}") for number in range(200)]
HONEST = [Candidate(f"honest{number}", f"10.0.0.{number + 1}:7070") for number in range(3)]


def test_every_agent_is_asked_within_a_bound_of_rounds_whatever_else_is_announced() -> None:
    history = ProbeHistory(random.Random(1))
    now, rounds, found = 0.0, 0, set[str]()
    while len(found) < len(HONEST):
        rounds += 1
        for candidate in history.newcomers([*FAKES, *HONEST], now):
            if candidate in HONEST:
                history.answered(candidate)
                found.add(candidate.id)
            else:
                history.failed(candidate, now)
        now += FIRST_PAUSE_S
    assert rounds <= -(-(len(FAKES) + len(HONEST)) // MOST_NEW)
    assert {candidate.id for candidate in history.known()} == found


def test_the_order_is_not_to_be_foreseen() -> None:
    orders = {tuple(ProbeHistory().newcomers(FAKES, 0.0)) for _ in range(4)}
    assert len(orders) == 4


def test_what_does_not_answer_is_left_alone_for_a_growing_time() -> None:
    history, (fake, *_) = ProbeHistory(), FAKES
    now, pauses = 0.0, []
    for _ in range(10):
        history.failed(fake, now)
        step = 1.0
        while not history.newcomers([fake], now + step):
            step += 1.0
        pauses.append(step)
        now += step
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MOST_PAUSE_S


def test_an_agent_may_fail_for_weeks() -> None:
    history, (fake, *_) = ProbeHistory(), FAKES
    for _ in range(3000):
        history.failed(fake, 0.0)
    assert not history.newcomers([fake], MOST_PAUSE_S - 1)
    assert history.newcomers([fake], MOST_PAUSE_S) == [fake]


def test_an_agent_that_answered_is_remembered_over_a_few_failures() -> None:
    history, (honest, *_) = ProbeHistory(), HONEST
    history.answered(honest)
    for _ in range(4):
        history.failed(honest, 0.0)
        assert history.known() == [honest]
    history.failed(honest, 0.0)
    assert history.known() == []


def test_the_memory_is_bounded() -> None:
    history = ProbeHistory(random.Random(1))
    crowd = [Candidate(f"fake{number}", "10.0.1.1:1") for number in range(MOST_BAD + 10)]
    for fake in crowd:
        history.failed(fake, 0.0)
    assert history.newcomers(crowd, 1.0).__len__() == 10
