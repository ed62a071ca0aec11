"""A stage against wrong messages, and its work on a right message."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import CapacityError
from flowedge.core.messages import Close, Credit, Fault, Heartbeat, Open, Segment
from tests.engine.rig import Rig, prune, segment
from tests.engine.stage.stage_sessions import draft, finish, opened, refused


def test_the_segment_the_others_are_variations_of_is_right():
    rig = opened()
    (sent,) = rig.receive(draft())
    assert isinstance(sent, Segment)
    assert sent.payload.shape == (2, 1)
    finish(rig)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (draft(payload=np.zeros(3, dtype=np.int32)), "carries int32 [3]"),
        (draft(payload=np.zeros((2, 1), dtype=np.int32)), "carries int32 [2, 1]"),
        (draft(payload=np.zeros(2, dtype=np.int64)), "carries int64"),
        (draft(payload=np.zeros(2, dtype=np.float32)), "carries float32"),
        (draft(payload=np.array(3, dtype=np.int32)), "carries int32 []"),
        (draft(payload=np.array([0, 50], dtype=np.int32)), "token id outside"),
        (draft(payload=np.array([-1, 3], dtype=np.int32)), "token id outside"),
        (draft(epoch=1), "newer"),
        (draft(epoch=-1), "older"),
        (draft(first=8, parents=[5, 8]), "starts at row 8, but 7 are cached"),
        (draft(first=6, parents=[5, 6]), "starts at row 6, but 7 are cached"),
        (draft(first=19), "beyond the session's 20 rows"),
        (draft(first=2**60), "beyond the session's 20 rows"),
        (draft(first=-1), "beyond the session's 20 rows"),
        (draft(parents=[5, 8]), "parent that is not an earlier draft row"),
        (draft(parents=[7, 7]), "parent that is not an earlier draft row"),
        (draft(parents=[5, 3]), "parent that is not an earlier draft row"),
        (draft(parents=[-2, 7]), "parent that is not an earlier draft row"),
        (draft(parents=[2**62, 7]), "parent that is not an earlier draft row"),
        (draft(positions=[5, 6]), "position that is not its parent's plus one"),
        (draft(positions=[6, 8]), "position that is not its parent's plus one"),
        (draft(positions=[2**62, 2**62 + 1]), "position that is not its parent's plus one"),
        (draft(positions=[6]), "1 rows and 2 parents"),
        (segment(number=2, first=7, rows=2), "commits rows while draft rows are cached"),
        (Open("s", 20), "open already"),
        (Credit("s"), "Credit does not belong on the in-band link"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_that_is_wrong_ends_its_session_and_no_other(bad, problem):
    refused(opened(), bad, problem)


def test_a_segment_of_too_many_rows_is_refused():
    refused(opened(max_rows=4), draft(parents=[5] * 5, positions=[6] * 5), "5 rows")


def test_committed_rows_at_wrong_positions_are_refused():
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=3, positions=[0, 1, 3]))
    assert "wrong positions" in rig.faults()[0].reason


@pytest.mark.parametrize(
    "message",
    [Open("s", 20), draft(), Fault("s", "v", "c", "r"), Credit("s")],
    ids=lambda m: type(m).__name__,
)
def test_a_message_on_the_wrong_lane_is_refused(message):
    refused(opened(), message, "does not belong on an express link", express=True)


def test_hidden_states_are_checked_where_they_are_taken():
    wrong = [np.zeros((3, 2), np.uint64), np.zeros(3, np.uint64), np.zeros((3, 1), np.float32)]
    for payload in wrong:
        rig = Rig(is_first=False)
        rig.receive(Open("s", 20))
        rig.receive(segment(first=0, rows=3, payload=payload))
        assert "this stage takes uint64 [3, 1]" in rig.faults()[0].reason
    rig = Rig(is_first=False)
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=3, payload=np.zeros((3, 1), np.uint64)))
    assert not rig.faults()
    assert rig.upstream == [], "only the first stage grants credits"


@pytest.mark.parametrize(
    "message", [draft(session="t"), prune("t", 1), Credit("t")], ids=lambda m: type(m).__name__
)
def test_a_message_of_an_unknown_session_is_one_fault_and_nothing_more(message):
    rig = opened()
    (fault,) = rig.receive(message)
    assert isinstance(fault, Fault)
    assert fault.session == "t"
    assert rig.stage.load().sessions == 2
    finish(rig)


def test_an_express_prune_of_an_unknown_session_is_ignored():
    rig = opened()
    assert rig.receive(prune("t", 1), express=True) == []
    finish(rig)


@pytest.mark.parametrize(
    ("capacity", "code"), [(0, "protocol"), (-5, "protocol"), (101, "capacity"), (2**60, "capacity")]
)
def test_a_session_that_does_not_fit_is_refused(capacity, code):
    rig = opened(max_capacity=100)
    (fault,) = rig.receive(Open("t", capacity))
    assert fault.code == code
    assert f"asks for {capacity} cache rows" in fault.reason
    assert rig.stage.load().sessions == 2
    assert [type(m) for m in rig.receive(Close("t"))] == [Close]
    finish(rig)


def test_sessions_that_do_not_fit_together_are_refused():
    rig = opened(max_total_capacity=200)
    taken = 20 + 30  # by the two sessions that are open
    assert isinstance(rig.receive(Open("t", 200 - taken))[0], Open)
    (fault,) = rig.receive(Open("u", 1))
    assert fault.code == "capacity"
    assert "room for 200, of which other sessions have 200" in fault.reason
    rig.receive(Close("t"))
    assert isinstance(rig.receive(Open("w", 200 - taken))[0], Open)
    rig.receive(Close("w"))
    rig.receive(Close("u"))
    finish(rig)


def test_too_many_sessions_are_refused_and_the_open_ones_live():
    rig = opened(max_sessions=2)
    (fault,) = rig.receive(Open("t", 10))
    assert "2 sessions are open" in fault.reason
    assert rig.receive(draft(session="t")) == [], "one fault is enough"
    rig.receive(Close("t"))
    finish(rig)


def test_a_job_that_fails_ends_its_session_with_the_error():
    rig = opened()
    rig.hold(draft())
    rig.stage.fail(rig.held.pop(), CapacityError("out of memory"))
    rig.pump()
    (fault,) = rig.faults()
    assert (fault.code, fault.reason) == ("capacity", "out of memory")
    finish(rig)


def test_a_fault_from_upstream_and_a_heartbeat():
    rig = opened()
    fault = Fault("x", "v9", "device", "on fire")
    assert rig.receive(fault) == [fault]
    assert rig.receive(Heartbeat(3)) == rig.receive(Heartbeat(4), express=True) == []
    finish(rig)


def test_one_row_and_no_row():
    rig = opened()
    (one,) = rig.receive(segment(number=2, first=7, parents=[5], positions=[6]))
    assert one.num_rows == 1
    empty = segment(number=3, first=0, parents=[])
    (none,) = rig.receive(empty)
    assert (none.number, none.num_rows, none.payload.shape) == (3, 0, (0, 1))
    assert not rig.faults()
    finish(rig)


def test_one_credit_for_each_segment_that_leaves_the_queue():
    rig = opened()
    begun = len(rig.upstream)
    rig.hold(draft())
    rig.receive(segment(number=3, first=9, parents=[5], positions=[6]), compute=False)
    rig.pump(compute=False)
    assert rig.upstream[begun:] == [Credit("s")]
    rig.release()
    assert rig.upstream[begun:] == [Credit("s")] * 2
    finish(rig)
