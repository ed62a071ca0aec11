"""A stage against messages that are wrong, late, early, doubled or out of order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.errors import CapacityError
from flowedge.messages import CONTEXT, Close, Credit, Fault, Heartbeat, Open, Prune, Segment
from flowedge.runtime.jobs import DropCache, Forward, OpenCache
from flowedge.runtime.stage import Stage, StageSpec
from tests.protocol.exact_model import ExactStage
from tests.protocol.rig import Rig, of_other, other_session, prune, segment


def undisturbed() -> list:
    rig = Rig()
    for message in other_session(True) + other_session(False):
        rig.receive(message)
    return of_other(rig.sent)


UNDISTURBED = undisturbed()


def opened(**limits) -> Rig:
    """Session `s` with 4 committed rows and the draft rows 4 (the root), 5 and 6; another in mid-life."""
    rig = Rig(**limits)
    for message in other_session(True):
        rig.receive(message)
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=4))
    rig.receive(segment(number=1, first=4, parents=[CONTEXT, 4, 4], positions=[4, 5, 5]))
    assert not rig.faults()
    return rig


def finish(rig: Rig, session: str = "s") -> None:
    """The other session goes on as if nothing had been, and the session can be closed without a trace."""
    for message in other_session(False):
        rig.receive(message)
    assert of_other(rig.sent) == UNDISTURBED
    closed = rig.receive(Close(session))
    assert [type(m) for m in closed] == [Close], "a close is passed on"
    rig.check_empty()


def refused(rig: Rig, message, problem: str, express: bool = False, code: str = "protocol") -> None:
    """The message ends its session with one fault, and what comes for the session after it is ignored."""
    sent = rig.receive(message, express)
    faults = [m for m in sent if isinstance(m, Fault)]
    assert len(faults) == 1, sent
    assert faults[0].session == message.session
    assert faults[0].device == "v0"
    assert faults[0].code == code
    assert problem in faults[0].reason, faults[0].reason
    assert rig.receive(segment(number=2, first=7, parents=[5], positions=[6])) == []
    assert rig.receive(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4])) == []
    assert rig.receive(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4]), express=True) == []
    assert len(rig.faults(message.session)) == 1
    finish(rig)


def draft(**changes) -> Segment:
    """The segment that is due: rows 7 and 8."""
    values = {"number": 2, "first": 7, "parents": [5, 7], "positions": [6, 7], **changes}
    return segment(**values)


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
        (draft(first=8, parents=[5, 8]), "starts at row 8, 7 are cached"),
        (draft(first=6, parents=[5, 6]), "starts at row 6, 7 are cached"),
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
        (Credit("s"), "Credit does not belong on the in-band lane"),
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
    refused(opened(), message, "does not belong on the express lane", express=True)


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
    assert rig.stage.num_sessions == 2
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
    assert rig.stage.num_sessions == 2
    assert [type(m) for m in rig.receive(Close("t"))] == [Close]
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


# ---------------------------------------------------------------------------------------------- prunes

# In session `s`, rows 4 (root), 5 and 6 are cached; 7 and 8 may still be upstream.
KEEP_5 = prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 5, 7, 8])


def later(epoch: int, context: int) -> Prune:
    return prune(epoch=epoch, source_len=context + 1, context=context, accepted=1, retained=[context])


@pytest.mark.parametrize("express", [False, True])
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (prune(epoch=1, source_len=9, context=3, accepted=1, retained=[4]), "starts from context 3"),
        (prune(epoch=1, source_len=6, context=4, accepted=1, retained=[4]), "but 7 are cached"),
        (prune(epoch=1, source_len=9, context=4, accepted=3, retained=[4, 5]), "accepts 3 of 2"),
        (prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 9]), "below 9"),
        (prune(epoch=1, source_len=9, context=4, accepted=1, retained=[3, 4]), "from 4"),
        (prune(epoch=1, source_len=9, context=4, accepted=1, retained=[5, 4]), "ascending"),
        (prune(epoch=1, source_len=9, context=4, accepted=3, retained=[4, 5, 7]), "accepts row 7"),
    ],
)
def test_a_prune_that_does_not_fit_ends_its_session(bad, problem, express):
    refused(opened(), bad, problem, express)


def test_an_index_beyond_what_is_cached_is_legal():
    rig = opened()
    assert rig.receive(KEEP_5) == [KEEP_5]
    (sent,) = rig.receive(segment(number=2, epoch=1, first=6, parents=[5, 6], positions=[6, 7]))
    assert sent.num_rows == 2
    finish(rig)


@pytest.mark.parametrize("epoch", [0, 2, -1, 2**40])
def test_an_in_band_prune_out_of_order_is_an_error(epoch):
    bad = prune(epoch=epoch, source_len=9, context=4, accepted=1, retained=[4, 5])
    refused(opened(), bad, "follows 0 on the in-band link")


def test_an_in_band_prune_that_comes_twice_is_an_error():
    rig = opened()
    rig.receive(KEEP_5)
    rig.receive(KEEP_5)
    (fault,) = rig.faults()
    assert "prune 1 follows 1" in fault.reason
    finish(rig)


def test_an_express_prune_that_comes_twice_or_late_is_ignored():
    rig = opened()
    assert rig.receive(KEEP_5, express=True) == [KEEP_5]
    assert rig.receive(KEEP_5, express=True) == []
    assert rig.receive(KEEP_5) == [], "the in-band copy has been sent on already: a link carries it once"
    assert rig.receive(KEEP_5, express=True) == []
    assert not rig.faults()
    finish(rig)


def test_express_prunes_out_of_order_are_held_until_their_turn():
    rig = opened()
    second, third = later(2, 5), later(3, 6)
    second = prune(epoch=2, source_len=8, context=5, accepted=1, retained=[5, 6])
    third = prune(epoch=3, source_len=7, context=6, accepted=0, retained=[])
    assert rig.receive(third, express=True) == []
    assert rig.receive(second, express=True) == []
    assert rig.receive(KEEP_5, express=True) == [KEEP_5, second, third]
    for message in (KEEP_5, second, third):
        assert rig.receive(message) == []
    held = rig.stage._sessions["s"]
    assert (held.epoch, held.fence, held.maps, held.held) == (3, 3, {}, {})
    finish(rig)


def test_an_in_band_prune_sets_free_the_express_ones_that_waited():
    rig = opened()
    second = prune(epoch=2, source_len=8, context=5, accepted=1, retained=[5, 6])
    assert rig.receive(second, express=True) == []
    assert rig.receive(KEEP_5) == [KEEP_5, second]
    finish(rig)


def test_held_prunes_are_bounded():
    rig = opened()
    for epoch in range(5_000, 5_000 + 1_100):
        rig.receive(later(epoch, 5), express=True)
    (fault,) = rig.faults()
    assert "held already" in fault.reason
    finish(rig)


def test_maps_are_dropped_when_the_fence_has_passed():
    rig = opened()
    rig.receive(KEEP_5, express=True)
    second = prune(epoch=2, source_len=8, context=5, accepted=1, retained=[5, 6])
    rig.receive(second, express=True)
    assert sorted(rig.stage._sessions["s"].maps) == [1, 2]
    # A segment that was sent before both: its rows go through both maps. 7 -> 6, 8 -> 7 -> gone.
    (sent,) = rig.receive(draft())
    assert (sent.epoch, sent.first_row, sent.num_rows, sent.parents.tolist()) == (2, 6, 1, [CONTEXT])
    rig.receive(KEEP_5)
    assert sorted(rig.stage._sessions["s"].maps) == [2]
    rig.receive(second)
    assert rig.stage._sessions["s"].maps == {}
    finish(rig)


def test_an_in_band_prune_acts_on_receipt_not_in_its_turn():
    rig = opened()
    rig.hold(draft())
    rig.receive(segment(number=3, first=9, parents=[8, 6], positions=[8, 6]), compute=False)
    rig.receive(prune(epoch=1, source_len=11, context=4, accepted=1, retained=[4, 6, 10]), compute=False)
    computing = rig.held[0]
    assert computing.dead, "no row of it lives: the computation is to be aborted"
    (waiting,) = rig.stage._inbox
    assert (waiting.epoch, waiting.first_row, waiting.num_rows) == (1, 6, 1)
    empty, live = rig.release()
    assert (empty.number, empty.num_rows, empty.payload.shape) == (2, 0, (0, 1))
    assert (live.number, live.num_rows, live.parents.tolist()) == (3, 1, [5])
    report = rig.stage._sessions["s"].report
    assert (report.aborted, report.rows_trimmed) == (1, 1)
    finish(rig)


def test_a_computation_of_which_a_row_lives_is_not_aborted():
    rig = opened()
    rig.hold(segment(number=2, first=7, parents=[5, 6], positions=[6, 6]))
    keep = prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 6, 8])
    assert rig.receive(keep) == [keep]
    assert not rig.held[0].dead
    (sent,) = rig.release()
    assert (sent.epoch, sent.first_row, sent.parents.tolist(), sent.positions.tolist()) == (1, 6, [5], [6])
    assert sent.payload.shape == (1, 1)
    finish(rig)


def test_a_close_aborts_what_is_in_the_lane_and_nothing_comes_of_it():
    rig = opened()
    rig.hold(draft())
    job = rig.held[0]
    assert [type(m) for m in rig.receive(Close("s"))] == [Close]
    assert job.dead
    assert rig.release() == []
    assert [type(m) for m in rig.receive(Close("s"))] == [Close]
    finish(rig)


def test_a_result_that_waits_to_be_sent_is_trimmed_and_follows_the_prune():
    rig = opened()
    rig.stage.receive(draft(), express=False)
    job = rig.stage.next_job()
    rig.stage.finish(job, rig.executor.run(job))
    rig.stage.receive(prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 5, 7]), express=True)
    first, second = rig.take()
    assert isinstance(first, Prune)
    assert (second.epoch, second.first_row, second.num_rows) == (1, 6, 1)
    assert rig.stage._sessions["s"].report.rows_wasted == 1
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


# ---------------------------------------------------------------------------------------------- closing


def test_an_express_close_that_overtakes_the_open_leaves_nothing():
    rig = opened()
    rig.receive(Close("t"), express=True)
    opening = Open("t", 10)
    assert rig.receive(opening) == [opening], "it is passed on, but nothing is opened here"
    assert rig.stage.num_sessions == 2
    assert rig.receive(segment("t", first=0, rows=3)) == []
    assert rig.receive(prune("t", 1)) == []
    assert [type(m) for m in rig.receive(Close("t"))] == [Close]
    assert not rig.faults("t")
    finish(rig)


def test_a_late_express_close_leaves_nothing():
    rig = opened()
    rig.receive(Close("s"))
    assert rig.receive(Close("s"), express=True) == []
    assert rig.receive(prune(epoch=1, source_len=9), express=True) == []
    assert not rig.stage._closed
    finish(rig)


def test_late_prunes_and_segments_of_a_closed_session_are_ignored():
    rig = opened()
    assert rig.receive(Close("s"), express=True) == []
    assert "s" not in rig.executor.caches
    assert rig.receive(KEEP_5) == rig.receive(KEEP_5, express=True) == rig.receive(draft()) == []
    assert rig.receive(Close("s"), express=True) == []
    (close,) = rig.receive(Close("s"))
    assert close.reports[0].segments == 2, "the report has outlived the session"
    assert not rig.faults()
    for message in other_session(False):
        rig.receive(message)
    assert of_other(rig.sent) == UNDISTURBED
    rig.check_empty()


def test_what_waits_to_be_sent_of_a_closed_session_is_dropped():
    rig = opened()
    rig.stage.receive(draft(), express=False)
    job = rig.stage.next_job()
    rig.stage.finish(job, rig.executor.run(job))
    rig.stage.receive(Close("s"), express=True)
    assert rig.pump() == []
    finish(rig)


def test_when_the_pipeline_is_gone_nothing_is_left():
    rig = opened()
    rig.hold(draft())
    rig.receive(Close("t"), express=True)
    rig.stage.drop_all()
    assert rig.release() == []
    rig.check_empty()
    rig.receive(Open("s", 20))
    assert rig.stage.num_sessions == 1


# ---------------------------------------------------------------------------------------- the link's order


def test_a_link_carries_each_prune_once_and_nothing_older_after_it():
    """Two stages of one pipeline: whatever the first sends, the second can take."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        rig = Rig()
        rig.receive(Open("s", 100))
        rig.receive(segment(first=0, rows=4))
        length, number, fence = 4, 1, 0
        for epoch in range(1, 6):
            parents = [CONTEXT, 4 + epoch - 1, 4 + epoch - 1] if length == 3 + epoch else [length - 1]
            context = 3 + epoch
            positions = [context, context + 1, context + 1] if len(parents) == 3 else [context + 1]
            rig.receive(
                segment(number=number, epoch=fence, first=length, parents=parents, positions=positions),
                compute=bool(rng.random() < 0.5),
            )
            length += len(parents)
            number += 1
            rig.pump()
            message = prune(epoch=epoch, source_len=length, context=context, accepted=1, retained=[context])
            length = context + 1
            if rng.random() < 0.5:
                rig.receive(message, express=True)
            rig.receive(message)
            fence = epoch
        check_link(rig.sent)
        assert not rig.faults()


def check_link(messages) -> None:
    fence = 0
    for message in messages:
        if isinstance(message, Prune):
            assert message.epoch == fence + 1
            fence = message.epoch
        elif isinstance(message, Segment):
            assert message.epoch == fence


# ---------------------------------------------------------------------------------------------- fuzzing

NUMBERS = st.one_of(st.integers(-3, 12), st.sampled_from([2**31, 2**40, -(2**40), 10**6]))
ROWS = st.lists(st.one_of(st.integers(-2, 12), st.sampled_from([2**40, 10**6])), max_size=5)
DTYPES = st.sampled_from(["int32", "int64", "float32", "uint64", "float16", "uint8"])
SESSIONS = st.sampled_from([*["s"] * 7, "t", ""])


@st.composite
def garbage(draw):
    """Any message, right or wrong, close enough to the session's state to get deep into the stage."""
    kind = draw(
        st.sampled_from(["open", "segment", "segment", "segment", "prune", "prune", "close", "other"])
    )
    session = draw(SESSIONS)
    match kind:
        case "open":
            return Open(session, draw(NUMBERS))
        case "close":
            return Close(session)
        case "other":
            return draw(st.sampled_from([Credit(session), Fault(session, "", "", ""), Heartbeat(1)]))
        case "prune":
            retained = draw(ROWS)
            if draw(st.integers(0, 4)):
                retained = sorted({4, *draw(st.sets(st.integers(5, 12), max_size=4))})
            return prune(
                session,
                epoch=draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3, 0])),
                source_len=draw(st.sampled_from([7, 9, 13, 13, 13, 2**40, -1])),
                context=draw(st.sampled_from([4, 4, 4, 4, 4, 5, 0])),
                accepted=draw(st.sampled_from([0, 1, 1, 2, 2, 3, 2**40, -1])),
                retained=retained,
            )
    parents = draw(ROWS)
    count = len(parents) if draw(st.integers(0, 5)) else draw(st.integers(0, 5))
    positions = [draw(st.integers(-1, 9)) for _ in range(count)]
    shape = draw(st.sampled_from([(count,), (count,), (count,), (count, 1), (count + 1,), ()]))
    dtype = "int32" if draw(st.integers(0, 4)) else draw(DTYPES)
    return Segment(
        session=session,
        number=draw(NUMBERS),
        epoch=draw(st.sampled_from([0, 0, 1, 2, -1])),
        committed=draw(st.integers(0, 5)) == 0,
        first_row=draw(st.one_of(st.sampled_from([7, 7, 5, 4, 8]), NUMBERS)),
        positions=np.array(positions, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        payload=np.full(shape, draw(st.sampled_from([0, 3, 49, 50])), dtype=dtype),
    )


class StrictStage(ExactStage):
    """Checks what a real executor is promised, whatever the wire says, and computes nothing of `s`."""

    def run(self, job):
        if isinstance(job, OpenCache | DropCache) or job.session == "other":
            return super().run(job)
        assert isinstance(job, Forward)
        n, capacity = job.num_rows, len(self.caches[job.session])
        assert n > 0
        assert 0 <= job.settled <= job.cached
        assert 0 <= job.context <= job.cached
        assert job.cached + n <= capacity
        assert job.settled + len(job.slots) == job.cached
        assert np.all(np.diff(job.slots) > 0)
        assert np.all(job.slots >= job.settled + np.arange(len(job.slots)))
        assert np.all(job.slots < capacity)
        assert len(job.tail_parents) == job.cached + n - job.context
        assert np.all(job.positions >= 0)
        assert np.all(job.positions < job.cached + n)
        return None if job.dead else np.zeros((n, 1), dtype=np.uint64)


def probe(rig: Rig) -> None:
    """Whatever state the garbage has left the session in, have it compute a row that fits this state."""
    held = rig.stage._sessions.get("s")
    if held is None or rig.stage._inbox or held.epoch != held.fence:
        return
    first, context = held.tail.cached, held.tail.context
    if first < held.capacity:
        rig.receive(segment(number=9, epoch=held.fence, first=first, parents=[CONTEXT], positions=[context]))


@given(st.lists(st.tuples(garbage(), st.booleans(), st.booleans()), min_size=1, max_size=14))
@settings(max_examples=200, deadline=None)
def test_no_garbage_breaks_a_stage_or_another_session(messages):
    """Only ProtocolError may come of data off a link; anything else would end the agent."""
    rig = opened(max_capacity=1000)
    rig.executor.__class__ = StrictStage
    for message, express, compute in messages:
        before = len(rig.sent)
        rig.receive(message, express, compute)
        faults = [m for m in rig.sent[before:] if isinstance(m, Fault)]
        assert len(faults) <= 2, "a fault for the message, and at most one for what it made the stage compute"
        probe(rig)
    rig.pump()
    for name in ("t", ""):
        rig.receive(Close(name))
    finish(rig)


def test_a_stage_pads_the_rows_it_sends_whatever_padding_they_came_with():
    rig = Rig(padding_per_row=100)
    rig.receive(Open("s", 20))
    (prompt,) = rig.receive(segment(first=0, rows=4, padding=7))
    assert prompt.padding == 400
    rig.hold(segment(number=1, first=4, parents=[CONTEXT, 4, 4], positions=[4, 5, 5]))
    rig.stage.receive(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4, 6]), express=True)
    fence, trimmed = rig.release()
    assert isinstance(fence, Prune)
    assert (trimmed.num_rows, trimmed.padding) == (2, 200), "the third died while computing"


def test_rows_that_are_pruned_in_the_outbox_take_their_padding_with_them():
    stage = Stage("v0", StageSpec(is_first=True, width=1, vocab_size=50, dtype="uint64", padding_per_row=100))
    executor = ExactStage(0)
    stage.receive(Open("s", 20), express=False)
    for sent in (
        segment(first=0, rows=4),
        segment(number=1, first=4, parents=[CONTEXT, 4, 4], positions=[4, 5, 5]),
    ):
        stage.receive(sent, express=False)
    while (job := stage.next_job()) is not None:
        stage.finish(job, executor.run(job))
    stage.receive(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4, 6]), express=True)
    sent = []
    while (message := stage.next_outbound()) is not None:
        sent.append(message)
    assert [m.padding for m in sent if isinstance(m, Segment)] == [400, 200]


def test_an_empty_segment_carries_no_padding():
    rig = opened(padding_per_row=100)
    (sent,) = rig.receive(segment(number=2, first=7, parents=[], positions=[], padding=999))
    assert (sent.num_rows, sent.padding) == (0, 0)
    finish(rig)


def test_rows_are_checked_against_the_width_that_earlier_stages_gave_them():
    rig = Rig(is_first=False, width=3, added_width=1)
    rig.receive(Open("s", 20))
    (fault,) = rig.receive(segment(first=0, rows=4, payload=np.zeros((4, 1), dtype=np.uint64)))
    assert isinstance(fault, Fault) and fault.code == "protocol"
    assert "this stage takes uint64 [4, 3]" in fault.reason


def test_an_empty_segment_has_the_width_of_the_rows_it_stands_for():
    rig = opened(added_width=2)
    (sent,) = rig.receive(segment(number=2, first=7, parents=[], positions=[]))
    assert sent.payload.shape == (0, 3)
    finish(rig)
