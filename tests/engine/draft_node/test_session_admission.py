"""Requests beyond the room wait in order, are told their place, and nobody starves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.request import PRIORITIES
from tests.engine.draft_node.admission_rig import AdmissionRig


def test_requests_with_room_are_opened_at_once_and_told_nothing() -> None:
    rig = AdmissionRig(total_rows=10)
    for name in "abc":
        rig.arrive(name, 3)
    assert rig.opened == ["a", "b", "c"]
    assert not rig.told
    assert rig.admission.held_rows == 9


def test_states_count_for_each_session_beside_its_rows() -> None:
    rig = AdmissionRig(total_rows=10, state_rows=3)
    rig.arrive("a", 2)
    rig.arrive("b", 3)
    assert rig.opened == ["a"], "3 of 10 rows are left, and b needs 3 and its states"
    with pytest.raises(
        CapacityError, match="needs 8 cache rows, and the caches of the stages have room for 7"
    ):
        rig.arrive("c", 8)
    rig.end("a")
    assert rig.opened == ["a", "b"]


def test_the_others_wait_in_the_order_of_their_arrival_and_hear_their_place() -> None:
    rig = AdmissionRig(sessions=1)
    for name in "abcd":
        rig.arrive(name)
    assert rig.positions == {"b": 1, "c": 2, "d": 3}
    rig.wait(5.0)
    rig.end("a")
    assert rig.opened == ["a", "b"]
    assert rig.waits() == {"b": 5.0}
    assert rig.positions == {"c": 1, "d": 2}
    heard = len(rig.told)
    rig.wait(1.0)
    assert len(rig.told) == heard, "a place that has not changed is not told again"


def test_priorities_go_before_arrival() -> None:
    rig = AdmissionRig(sessions=1)
    rig.arrive("open")
    for name, priority in zip("abcdef", ["batch", "normal", "interactive"] * 2, strict=True):
        rig.arrive(name, priority=priority)
    assert rig.positions == {"c": 1, "f": 2, "b": 3, "e": 4, "a": 5, "d": 6}


def test_an_answer_that_goes_on_is_before_others_of_its_priority() -> None:
    rig = AdmissionRig(sessions=1)
    rig.arrive("open")
    rig.arrive("new")
    rig.arrive("begun", goes_on=True)
    rig.arrive("batch", priority="batch", goes_on=True)
    rig.arrive("urgent", priority="interactive")
    assert rig.positions == {"urgent": 1, "begun": 2, "new": 3, "batch": 4}


def test_a_waiting_request_moves_up_by_one_priority_with_each_quarter_of_the_deadline() -> None:
    rig = AdmissionRig(sessions=1, queue_s=40.0)
    rig.arrive("open")
    rig.arrive("batch", priority="batch")
    rig.wait(9.0)
    rig.arrive("normal")
    assert rig.positions == {"normal": 1, "batch": 2}
    rig.wait(1.0)
    assert rig.positions == {"batch": 1, "normal": 2}
    rig.wait(8.0)
    rig.arrive("interactive", priority="interactive")
    assert rig.positions == {"interactive": 1, "batch": 2, "normal": 3}
    rig.wait(2.0)
    assert rig.positions == {"batch": 1, "normal": 2, "interactive": 3}


def test_a_small_request_overtakes_a_large_one_only_so_often() -> None:
    rig = AdmissionRig(total_rows=10, overtakes=2)
    rig.arrive("open", 8)
    rig.arrive("large", 9)
    for name in "abc":
        rig.arrive(name, 1)
    assert rig.opened == ["open", "a", "b"]
    rig.end("a")
    assert rig.opened == ["open", "a", "b"], "room is kept for the large request"
    rig.end("open")
    assert rig.opened == ["open", "a", "b", "large"], "and it needs that of b no more"
    rig.end("b")
    assert rig.opened[-1] == "c"


def test_a_request_that_can_never_fit_is_refused_with_what_would_fit() -> None:
    rig = AdmissionRig(total_rows=100, session_rows=60, drafter_rows=40)
    with pytest.raises(
        CapacityError, match=r"needs 61 .* room for 60: lower max_new_tokens by 1 or"
    ) as caught:
        rig.arrive("a", 61)
    assert caught.value.retry_after_s is None
    with pytest.raises(CapacityError, match=r"drafter's cache on device d0 have room for 40: .* by 10 "):
        rig.arrive("a", 50, drafts=True)
    rig.arrive("a", 60)
    assert rig.opened == ["a"]


def test_the_drafters_rows_bound_sessions_that_draft_alone() -> None:
    rig = AdmissionRig(total_rows=100, drafter_rows=40)
    rig.arrive("a", 30, drafts=True)
    rig.arrive("b", 30, drafts=True)
    rig.arrive("c", 30)
    assert rig.opened == ["a", "c"]
    rig.end("a")
    assert rig.opened == ["a", "c", "b"]


def test_a_full_queue_refuses_with_the_seconds_that_sessions_have_taken_lately() -> None:
    rig = AdmissionRig(sessions=2, queue_length=2)
    rig.arrive("a")
    rig.arrive("b")
    rig.wait(30.0)
    rig.end("a")
    rig.arrive("c")
    rig.wait(10.0)
    rig.end("b")  # the two have taken 30 s and 40 s
    rig.arrive("d")
    rig.arrive("e")
    rig.arrive("f")
    with pytest.raises(
        CapacityError, match=r"2 requests wait for device d0 already; try later, in about"
    ) as caught:
        rig.arrive("g")
    assert caught.value.retry_after_s == pytest.approx(35.0 * 3 / 2)
    assert rig.admission.waiting == ["e", "f"]


def test_no_queue_at_all() -> None:
    rig = AdmissionRig(sessions=1, queue_length=0)
    rig.arrive("a")
    with pytest.raises(CapacityError, match="0 requests wait"):
        rig.arrive("b")
    rig.end("a")
    rig.arrive("b")
    assert rig.opened == ["a", "b"]


def test_a_more_urgent_request_takes_the_place_of_the_last_in_a_full_queue() -> None:
    rig = AdmissionRig(sessions=1, queue_length=2)
    rig.arrive("open")
    rig.arrive("a", priority="batch")
    rig.arrive("b", priority="batch")
    rig.arrive("c", priority="interactive")
    assert rig.positions == {"c": 1, "a": 2}
    assert rig.errors()["b"].retry_after_s > 0
    with pytest.raises(CapacityError, match="2 requests wait"):
        rig.arrive("d", priority="batch")


def test_the_deadline_of_a_waiting_request_says_when_to_try_again() -> None:
    rig = AdmissionRig(sessions=1, queue_s=8.0)
    rig.arrive("a")
    rig.wait(1.0)
    rig.arrive("b")
    assert rig.admission.next_deadline == 9.0
    rig.wait(7.5)
    assert not rig.errors()
    rig.wait(0.5)
    error = rig.errors()["b"]
    assert isinstance(error, CapacityError)
    assert "device d0 had no room for the request within 8 s; try later, in about 9 s" in str(error)
    assert error.retry_after_s == 9.0  # a has taken so long already
    assert rig.admission.next_deadline is None


def test_a_request_that_is_withdrawn_lets_the_others_up() -> None:
    rig = AdmissionRig(sessions=1)
    for name in "abcd":
        rig.arrive(name)
    assert rig.admission.withdraw("b")
    assert not rig.admission.withdraw("b")
    rig.admit()
    assert rig.positions == {"c": 1, "d": 2}


def test_one_name_waits_once() -> None:
    rig = AdmissionRig(sessions=1)
    rig.arrive("a")
    rig.arrive("b")
    with pytest.raises(BadRequestError, match="session b exists already"):
        rig.arrive("b")


def test_other_limits_hold_from_then_on() -> None:
    rig = AdmissionRig(sessions=1)
    for name in "abc":
        rig.arrive(name)
    rig.admission.limits = rig.limits.within(total_rows=0, session_rows=0, sessions=0, on_demand=False)
    rig.admit()
    assert rig.opened == ["a"]
    rig.admission.limits = type(rig.limits)(sessions=2)
    rig.admit()
    assert rig.opened == ["a", "b"]


ARRIVAL = st.tuples(st.just("arrive"), st.integers(1, 12), st.sampled_from(PRIORITIES), st.booleans())
STEPS = st.lists(
    st.one_of(
        ARRIVAL,
        ARRIVAL,
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("withdraw"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.floats(0.1, 9.0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(4, 12), st.integers(2, 12), st.integers(1, 4), st.integers(0, 5), st.integers(0, 3))
def test_random_histories_keep_within_the_room_and_account_for_every_request(
    steps: list[Any], total: int, drafter: int, sessions: int, length: int, overtakes: int
) -> None:
    rig = AdmissionRig(
        total_rows=total,
        session_rows=total,
        drafter_rows=drafter,
        sessions=sessions,
        queue_length=length,
        queue_s=20.0,
        overtakes=overtakes,
    )
    taken: set[str] = set()
    withdrawn: set[str] = set()
    drafting: set[str] = set()
    for number, step in enumerate(steps):
        match step:
            case ("arrive", rows, priority, drafts):
                try:
                    rig.arrive(str(number), rows, priority, drafts=drafts)
                except CapacityError as error:
                    assert (error.retry_after_s is None) == (rows > total or (drafts and rows > drafter))
                else:
                    taken.add(str(number))
                    drafting |= {str(number)} if drafts else set()
            case ("end", which) if rig.open:
                rig.end(sorted(rig.open)[which % len(rig.open)])
            case ("withdraw", which) if rig.admission.waiting:
                name = rig.admission.waiting[which % len(rig.admission.waiting)]
                assert rig.admission.withdraw(name)
                withdrawn.add(name)
                rig.admit()
            case ("wait", seconds):
                rig.wait(seconds)
        waiting = rig.admission.waiting
        assert sum(rig.open.values()) == rig.admission.held_rows <= total
        assert sum(rows for name, rows in rig.open.items() if name in drafting) <= drafter
        assert len(rig.open) <= sessions
        assert len(waiting) <= length
        assert sorted(rig.positions.values()) == list(range(1, len(waiting) + 1))
        # Everybody is somewhere, and nowhere twice.
        ended = [set(rig.opened), set(waiting), set(rig.errors()), withdrawn]
        assert set.union(*ended) == taken
        assert sum(map(len, ended)) == len(taken)
        assert rig.open or not waiting, "nobody waits for an empty pipeline"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=6), st.integers(0, 3))
def test_a_large_batch_request_is_opened_under_an_endless_load_of_small_urgent_ones(
    rows: list[int], overtakes: int
) -> None:
    rig = AdmissionRig(total_rows=10, queue_s=100.0, overtakes=overtakes, queue_length=1000)
    rig.arrive("first", 1, "interactive")
    rig.arrive("large", 10, "batch")
    for turn in range(1000):
        if "large" in rig.opened:
            break
        rig.arrive(f"{turn}", rows[turn % len(rows)], "interactive")
        rig.wait(1.0)
        rig.end(next(iter(rig.open)))
    assert "large" in rig.opened
    assert rig.now < 100.0


def test_batch_sessions_give_way_to_others_where_that_makes_room() -> None:
    rig = AdmissionRig(total_rows=10)
    rig.arrive("a", 4, "batch")
    rig.arrive("b", 4, "batch")
    rig.arrive("c", 2)
    rig.arrive("large", 9)
    assert rig.admission.giving_way(rig.now) is None, "they have not the room that is missing"
    rig.admission.withdraw("large")
    rig.arrive("small", 3)
    assert rig.admission.giving_way(rig.now) == "b", "the latest"
    rig.end("b")
    assert rig.opened[-1] == "small"
    assert rig.admission.giving_way(rig.now) is None
    rig.arrive("d", 4, "batch")
    assert rig.admission.giving_way(rig.now) is None, "to another batch session"


def test_a_batch_session_that_waited_long_keeps_its_room() -> None:
    rig = AdmissionRig(sessions=1, queue_s=40.0)
    rig.arrive("open")
    rig.arrive("batch", priority="batch")
    rig.wait(10.0)
    rig.end("open")
    rig.arrive("normal")
    assert rig.opened == ["open", "batch"]
    assert rig.admission.giving_way(rig.now) is None
