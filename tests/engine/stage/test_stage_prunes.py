"""A stage against prunes that are wrong, late, early, doubled or out of order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.messages import CONTEXT, Close, Open, Prune, Segment
from flowedge.protocol.link_kind import LinkKind
from tests.engine.rig import Rig, prune, segment
from tests.engine.stage.stage_sessions import (
    AFTER_KEEP_5,
    KEEP_5,
    compute_unsent,
    draft,
    finish,
    opened,
    refused,
)
from tests.support.seams import inbox, stage_sessions


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
    third = prune(epoch=3, source_len=7, context=6, accepted=0, retained=[])
    assert rig.receive(third, express=True) == []
    assert rig.receive(AFTER_KEEP_5, express=True) == []
    assert rig.receive(KEEP_5, express=True) == [KEEP_5, AFTER_KEEP_5, third]
    for message in (KEEP_5, AFTER_KEEP_5, third):
        assert rig.receive(message) == []
    held = stage_sessions(rig.stage)["s"]
    assert (held.epoch, held.fence, held.maps, held.held) == (3, 3, {}, {})
    finish(rig)


def test_an_in_band_prune_sets_free_the_express_ones_that_waited():
    rig = opened()
    assert rig.receive(AFTER_KEEP_5, express=True) == []
    assert rig.receive(KEEP_5) == [KEEP_5, AFTER_KEEP_5]
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
    rig.receive(AFTER_KEEP_5, express=True)
    assert sorted(stage_sessions(rig.stage)["s"].maps) == [1, 2]
    # A segment that was sent before both: its rows go through both maps. 7 -> 6, 8 -> 7 -> gone.
    (sent,) = rig.receive(draft())
    assert (sent.epoch, sent.first_row, sent.num_rows, sent.parents.tolist()) == (2, 6, 1, [CONTEXT])
    rig.receive(KEEP_5)
    assert sorted(stage_sessions(rig.stage)["s"].maps) == [2]
    rig.receive(AFTER_KEEP_5)
    assert stage_sessions(rig.stage)["s"].maps == {}
    finish(rig)


def test_an_in_band_prune_acts_on_receipt_not_in_its_turn():
    rig = opened()
    rig.hold(draft())
    rig.receive(segment(number=3, first=9, parents=[8, 6], positions=[8, 6]), compute=False)
    rig.receive(prune(epoch=1, source_len=11, context=4, accepted=1, retained=[4, 6, 10]), compute=False)
    computing = rig.held[0]
    assert computing.dead, "no row of it lives: the computation is to be aborted"
    (waiting,) = inbox(rig.stage)
    assert (waiting.epoch, waiting.first_row, waiting.num_rows) == (1, 6, 1)
    empty, live = rig.release()
    assert (empty.number, empty.num_rows, empty.payload.shape) == (2, 0, (0, 1))
    assert (live.number, live.num_rows, live.parents.tolist()) == (3, 1, [5])
    report = stage_sessions(rig.stage)["s"].report
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
    compute_unsent(rig)
    rig.stage.receive(
        prune(epoch=1, source_len=9, context=4, accepted=1, retained=[4, 5, 7]), LinkKind.EXPRESS
    )
    first, second = rig.take()
    assert isinstance(first, Prune)
    assert (second.epoch, second.first_row, second.num_rows) == (1, 6, 1)
    assert stage_sessions(rig.stage)["s"].report.rows_wasted == 1
    finish(rig)


def test_a_link_carries_each_prune_once_and_nothing_older_after_it():
    """Two stages of one pipeline: the second accepts all messages of the first."""
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


def test_a_prune_that_takes_its_turn_leaves_the_segments_before_it_whole():
    rig = opened()
    last = replace(KEEP_5, source_len=11, in_turn=True)
    rig.hold(draft(number=2, first=7, parents=[4], positions=[5]))
    assert rig.receive(draft(number=3, first=8, parents=[6, 6, 6], positions=[6, 6, 6])) == []
    assert rig.receive(last) == []
    assert rig.receive(segment(number=4, epoch=1, first=8, parents=[5], positions=[6])) == []
    held = stage_sessions(rig.stage)["s"]
    assert (held.epoch, held.fence) == (0, 1)
    second, third, passed, fourth = rig.release()
    sent = [(each.number, each.epoch, each.num_rows) for each in (second, third, fourth)]
    assert sent == [(2, 0, 1), (3, 0, 3), (4, 1, 1)]
    assert passed == last
    assert (held.epoch, held.maps, held.held) == (1, {}, {})
    finish(rig)


def test_an_express_prune_waits_for_the_one_before_it_that_takes_its_turn():
    rig = opened()
    first = replace(prune(epoch=1, source_len=8, context=4, accepted=1, retained=[4, 5]), in_turn=True)
    second = prune(epoch=2, source_len=6, context=5, accepted=1, retained=[5])
    rig.hold(draft(number=2, first=7, parents=[4], positions=[5]))
    assert rig.receive(second, express=True) == []
    assert rig.receive(first) == []
    assert rig.receive(second) == []
    new = segment(number=3, epoch=2, first=6, parents=[CONTEXT], positions=[6])
    assert rig.receive(new) == []
    sent = rig.release()
    assert [type(message).__name__ for message in sent] == ["Segment", "Prune", "Prune", "Segment"]
    assert (sent[0].num_rows, sent[3].num_rows) == (1, 1)
    finish(rig)
