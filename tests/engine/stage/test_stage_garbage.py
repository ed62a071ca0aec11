"""A stage against random messages."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import DrainingError
from flowedge.core.messages import CONTEXT, Close, Credit, Fault, Heartbeat, Open, Segment
from flowedge.engine.jobs import DropCache, OpenCache
from tests.engine.exact_model import ExactStage
from tests.engine.rig import Rig, prune, segment
from tests.engine.stage.stage_sessions import finish, opened
from tests.support.seams import inbox, stage_sessions
from tests.support.session_jobs import run_alone

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
    """An executor that checks the promises of a stage to it, and returns zeros."""

    def run(self, job):
        if isinstance(job, OpenCache | DropCache):
            return super().run(job)
        return [self.run_forward(forward) for forward in job.forwards]

    def run_forward(self, job):
        if job.session == "other":
            return run_alone(super(), job)
        n, capacity = job.num_rows, len(self.caches[job.session])
        assert n > 0
        assert 0 <= job.gathered_until <= job.cached
        assert 0 <= job.context <= job.cached
        assert job.cached + n <= capacity
        assert job.gathered_until + len(job.slots) == job.cached
        assert np.all(np.diff(job.slots) > 0)
        assert np.all(job.slots >= job.gathered_until + np.arange(len(job.slots)))
        assert np.all(job.slots < capacity)
        assert len(job.tail_parents) == job.cached + n - job.context
        assert np.all(job.positions >= 0)
        assert np.all(job.positions < job.cached + n)
        return None if job.dead else np.zeros((n, 1), dtype=np.uint64)


def probe(rig: Rig) -> None:
    """Whatever state the garbage has left the session in, have it compute a row that fits this state."""
    held = stage_sessions(rig.stage).get("s")
    if held is None or inbox(rig.stage) or held.epoch != held.fence:
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


def test_a_queue_that_is_full_ends_the_session_that_adds_to_it():
    rig = Rig(max_queue=2)
    rig.receive(Open("s", 20))
    rig.receive(Open("t", 20))
    rig.hold(segment(first=0, rows=2))
    for number in (1, 2):
        rig.receive(segment(number=number, first=2 * number, rows=2))
    assert rig.stage.load().queued == 2
    rig.receive(segment("t", first=0, rows=2))
    assert "2 segments wait here already" in rig.faults("t")[0].reason
    assert not rig.faults("s")


def test_a_stage_that_drains_refuses_what_is_new_and_hands_back_what_runs():
    rig = opened()
    rig.stage.refuse_sessions(DrainingError("v0", "it is draining"))
    rig.receive(Open("new", 20))
    (refusal,) = rig.faults("new")
    assert (refusal.device, refusal.code, refusal.reason) == ("v0", "draining", "it is draining")
    assert not rig.faults("s") + rig.faults("other")
    rig.stage.fail_sessions(DrainingError("v0", "time is up"))
    rig.pump()
    for name in ("s", "new", "other"):
        assert [fault.code for fault in rig.faults(name)] == ["draining"]
        assert not rig.stage.load().drained
        rig.receive(Close(name))
    assert rig.stage.load().drained
    rig.check_empty()
    assert sum(counts.opened for counts in rig.counted) == 2
    assert sum((counts.ended for counts in rig.counted), Counter()) == {"draining": 2}
    assert all(rig.counted) and not rig.stage.poll(idle=True, ready=True)
