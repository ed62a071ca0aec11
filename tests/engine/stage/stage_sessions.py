"""A stage with two sessions: a fault or prune of the first must not change the second."""

from __future__ import annotations

from flowedge.core.messages import CONTEXT, Close, Fault, Open, Segment
from flowedge.protocol.link_kind import LinkKind
from tests.engine.rig import Rig, of_other, other_session, prune, segment


def undisturbed() -> list:
    rig = Rig()
    for message in other_session(True) + other_session(False):
        rig.receive(message)
    return of_other(rig.sent)


UNDISTURBED = undisturbed()
# In session `s`, rows 4 (root), 5 and 6 are cached; 7 and 8 may still be upstream.
KEEP_5 = prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 5, 7, 8])
AFTER_KEEP_5 = prune(epoch=2, source_len=8, context=5, accepted=1, retained=[5, 6])


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


def compute_unsent(rig: Rig) -> None:
    """Compute the segment that is due; its result waits to be sent."""
    rig.stage.receive(draft(), LinkKind.IN_BAND)
    job = rig.next_job()
    assert job is not None
    rig.stage.finish(job, rig.executor.run(job))


def draft(**changes) -> Segment:
    """The segment that is due: rows 7 and 8."""
    values = {"number": 2, "first": 7, "parents": [5, 7], "positions": [6, 7], **changes}
    return segment(**values)
