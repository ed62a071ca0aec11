"""Which waiting segments a stage computes together."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.engine.stage.waiting_segments import ForwardTimes, WaitingSegments
from tests.engine.rig import segment


def waiting(*names: str, most_rows: int = 100, rows: int = 2) -> WaitingSegments:
    """Segments that wait: a name is a session, of which a small letter has an empty segment."""
    found = WaitingSegments(most_rows)
    for number, name in enumerate(names):
        count = 0 if name.islower() else rows
        found.put(segment(name.upper(), number, parents=[-1] * count, positions=[0] * count))
    return found


def taken(segments: WaitingSegments, alone: str = "", worth=len) -> str:
    return "".join(each.session for each in segments.take(lambda session: session in alone, worth))


def all_taken(segments: WaitingSegments, alone: str = "", worth=len) -> list[str]:
    found = []
    while segments:
        found.append(taken(segments, alone, worth))
    return found


@pytest.mark.parametrize(
    ("names", "alone", "together"),
    [
        ("", "", []),
        ("A", "", ["A"]),
        ("ABC", "", ["ABC"]),
        ("AABBC", "", ["ABC", "AB"]),
        ("AaB", "", ["AB", "A"]),
        ("aAB", "", ["A", "AB"]),
        ("AbBC", "", ["AC", "B", "B"]),
        ("ABC", "B", ["AC", "B"]),
        ("ABC", "A", ["A", "BC"]),
        ("ABC", "ABC", ["A", "B", "C"]),
    ],
)
def test_segments_of_different_sessions_are_taken_together_in_their_order(names, alone, together):
    assert all_taken(waiting(*names), alone) == together


def test_the_order_of_each_session_is_kept():
    rng = np.random.default_rng(0)
    for _ in range(200):
        segments = waiting(*rng.choice(list("ABCDabcd"), size=20))
        numbers: dict[str, list[int]] = {}
        while segments:
            count = int(rng.integers(1, 5))
            for each in segments.take(lambda session: session == "D", lambda rows: min(count, len(rows))):  # noqa: B023
                numbers.setdefault(each.session, []).append(each.number)
        assert all(of_session == sorted(of_session) for of_session in numbers.values())
        assert sum(map(len, numbers.values())) == 20


def test_a_forward_has_at_most_so_many_rows_and_segments():
    assert all_taken(waiting(*"ABCD", most_rows=5)) == ["AB", "CD"]
    assert all_taken(waiting(*"AB", most_rows=1)) == ["A", "B"], "larger than a forward, as alone"
    many = WaitingSegments(10_000)
    for index in range(BATCH_SEGMENTS + 3):
        many.put(segment(f"s{index}", parents=[-1], positions=[0]))
    assert len(many.take(lambda _: False, len)) == BATCH_SEGMENTS
    assert len(many) == 3


def test_the_rows_of_the_candidates_decide_how_many_are_taken():
    asked: list[list[int]] = []

    def worth(rows) -> int:
        asked.append(list(rows))
        return 2

    assert all_taken(waiting(*"ABC"), worth=worth) == ["AB", "C"]
    assert asked == [[2, 2, 2]], "a single segment is no question"


def measured(seconds: dict[int, float]) -> ForwardTimes:
    times = ForwardTimes()
    for rows, taken_s in seconds.items():
        for _ in range(20):
            times.observe(rows, taken_s)
    return times


def test_all_that_waits_is_worth_a_try_until_forwards_are_measured():
    assert ForwardTimes().worth([1, 1, 1]) == 3
    assert measured({1: 0.01}).worth([1] * 8) == 8


def test_free_rows_are_computed_together():
    assert measured({1: 0.01, 64: 0.011}).worth([8] * 8) == 8


def test_rows_that_cost_as_much_together_are_computed_apart():
    linear = measured({1: 0.01, 2: 0.02, 4: 0.04, 8: 0.08, 16: 0.16, 32: 0.32})
    assert linear.worth([4] * 8) == 1


def test_a_prefill_chunk_behind_other_rows_waits_and_rows_behind_it_go_with_it():
    times = measured({1: 0.01, 8: 0.01, 128: 0.1})
    assert times.worth([1, 1, 1, 128]) == 3
    assert times.worth([128, 1, 1, 1]) == 4
