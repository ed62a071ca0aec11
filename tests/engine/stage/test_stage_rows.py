"""The width of the rows that a stage takes and sends."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import CONTEXT, Fault, Open, Segment, StageTime, Tapped
from flowedge.engine.stage import outgoing
from flowedge.protocol.link_kind import LinkKind
from tests.engine.exact_model import ExactStage
from tests.engine.rig import Rig, prune, segment
from tests.engine.stage.stage_sessions import finish, opened


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


def test_what_is_kept_goes_to_the_draft_node_in_messages_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(outgoing, "TAPPED_BYTES", 20)
    rig = Rig(is_first=False, width=3, added_width=1, tapped_before=2)
    rig.executor = ExactStage(1, taps=True)
    receive = rig.receive
    receive(Open("s", 20, keeps_taps=True))
    receive(segment(first=0, rows=4, payload=np.ones((4, 3), dtype=np.uint64)))
    payload = np.array([[7], [8], [9]], dtype=np.uint64)
    receive(segment(number=1, first=4, parents=[CONTEXT, 4, 5], positions=[4, 5, 6], payload=payload))
    receive(prune(epoch=1, source_len=7, context=4, accepted=3, retained=[4, 5, 6]), express=True)
    assert [m.payload.shape for m in rig.sent if isinstance(m, Segment)] == [(4, 4), (3, 1)]
    assert all(isinstance(message, Tapped) and message.first == 3 for message in rig.told)
    assert [message.rows.tolist() for message in rig.told] == [[[7], [8]], [[9]]]


def test_a_segment_tells_what_each_stage_took_for_the_rows_that_it_computed():
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.receive(segment(first=0, rows=4))
    times = (StageTime(5, 0.25),)
    rig.hold(segment(number=1, first=4, parents=[CONTEXT, 4, 4], positions=[4, 5, 5], stage_times=times))
    rig.stage.receive(prune(epoch=1, source_len=7, context=4, accepted=1, retained=[4, 6]), LinkKind.EXPRESS)
    rig.stage.ran(rig.held[0], 0.5)
    _, sent = rig.release()
    assert sent.stage_times == (*times, StageTime(3, 0.5)), "also for the row that died while computing"


def test_a_segment_tells_how_long_it_waited_for_the_forward_before_it():
    rig = Rig()
    rig.receive(Open("s", 20))
    rig.stage.now = 1.0
    rig.hold(segment(first=0, rows=4))
    rig.stage.now = 1.25
    rig.receive(segment(number=1, first=4, parents=[CONTEXT], positions=[4]), compute=False)
    rig.stage.now = 3.0
    first, second = (message for message in rig.release() if isinstance(message, Segment))
    assert [time.waited for sent in (first, second) for time in sent.stage_times] == [0.0, 1.75]


def test_a_stage_that_computed_nothing_of_a_segment_says_so():
    rig = opened()
    (sent,) = rig.receive(segment(number=1, first=4, parents=[], positions=[]))
    assert sent.stage_times == (StageTime(0, 0.0),)
    finish(rig)
