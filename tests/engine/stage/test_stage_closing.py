"""A stage whose sessions close: in turn, early, late, or because the pipeline is gone."""

from __future__ import annotations

from flowedge.core.messages import Close, Open
from flowedge.protocol.link_kind import LinkKind
from tests.engine.rig import of_other, other_session, prune, segment
from tests.engine.stage.stage_sessions import KEEP_5, UNDISTURBED, compute_unsent, draft, finish, opened
from tests.support.seams import has_tombstones


def test_an_express_close_that_overtakes_the_open_leaves_nothing():
    rig = opened()
    rig.receive(Close("t"), express=True)
    opening = Open("t", 10)
    assert rig.receive(opening) == [opening], "it is passed on, but nothing is opened here"
    assert rig.stage.load().sessions == 2
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
    assert not has_tombstones(rig.stage)
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
    compute_unsent(rig)
    rig.stage.receive(Close("s"), LinkKind.EXPRESS)
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
    assert rig.stage.load().sessions == 1
