"""Index arithmetic of prunes against a naive one, and the outbox they act on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Close, Credit, Fault, Open, Prune, Segment
from flowedge.protocol.epochs import check_prune, map_segment, renumbered, renumbered_parents, retained_from
from flowedge.protocol.outbox import DraftNodeOutbox, Outbox
from flowedge.protocol.row_sequence import RowSequence

EXAMPLES = settings(max_examples=200, deadline=None)


def prune_of(epoch, source_len, context, accepted, retained, session="s") -> Prune:
    return Prune(session, epoch, source_len, context, accepted, np.array(retained, dtype=np.int64))


def segment_of(first, parents, epoch=0, session="s", number=0, committed=False) -> Segment:
    n = len(parents)
    return Segment(
        session=session,
        number=number,
        epoch=epoch,
        committed=committed,
        first_row=first,
        positions=np.arange(first, first + n),
        parents=np.array(parents, dtype=np.int64),
        payload=np.arange(n, dtype=np.int32) + 100 * number,
    )


@st.composite
def chains(draw):
    """Segments of draft rows, and the prunes that come of verifying them in order.

    Returns the sequence at the end; each segment with the number of prunes it is in flight for; the prunes;
    and of each prune the naive form: a dict from old row to new row, and the context after it.
    """
    sequence = RowSequence("s")
    sequence.commit([0] * draw(st.integers(0, 4)))
    segments = []
    for number in range(draw(st.integers(1, 5))):
        first, parents = sequence.length, []
        for row in range(first, first + draw(st.integers(1, 4))):
            is_root = row == sequence.context
            parents.append(CONTEXT if is_root else draw(st.integers(sequence.context, row - 1)))
        sequence.append(tuple(range(len(parents))), tuple(parents))
        positions = sequence.positions[first - sequence.context :]
        segments.append(replace(segment_of(first, parents, number=number), positions=positions))
    prunes, dicts, lives = [], [], []
    in_flight = list(segments)
    for _ in range(draw(st.integers(0, len(segments)))):
        returned = in_flight.pop(0)
        lives.append(len(prunes))
        if not returned.num_rows:
            continue
        context = sequence.context
        assert returned.first_row == context, "a row that has come back is still draft"
        accepted = [draw(st.integers(context, context + returned.num_rows - 1))]
        while sequence.parents[accepted[0] - context] != CONTEXT:
            accepted.insert(0, int(sequence.parents[accepted[0] - context]))
        upstream = range(context + returned.num_rows, sequence.length)
        children = [row for row in upstream if sequence.parents[row - context] == accepted[-1]]
        root = draw(st.sampled_from([*children, None] if children else [None]))
        prune = sequence.prune(tuple(accepted), root)
        stay = [*range(context), *prune.retained.tolist()]
        prunes.append(prune)
        dicts.append(({old: new for new, old in enumerate(stay)}, sequence.context))
        in_flight = [map_segment(segment, prune)[0] for segment in in_flight]
    lives += [len(prunes)] * len(in_flight)
    return sequence, list(zip(segments, lives, strict=True)), prunes, dicts


@given(chains())
@EXAMPLES
def test_segments_under_chains_of_prunes_are_mapped_as_dicts_map_them(chain):
    sequence, segments, prunes, dicts = chain
    for segment, life in segments:
        rows = [segment.first_row + i for i in range(segment.num_rows)]
        parents, offsets = segment.parents.tolist(), list(range(segment.num_rows))
        mapped, kept = segment, np.arange(segment.num_rows)
        for prune, (to_new, new_context) in zip(prunes[:life], dicts[:life], strict=True):
            alive = [i for i, row in enumerate(rows) if row in to_new]
            offsets = [offsets[i] for i in alive]
            new_parents = [CONTEXT if parents[i] == CONTEXT else to_new[parents[i]] for i in alive]
            parents = [CONTEXT if p < new_context else p for p in new_parents]
            rows = [to_new[rows[i]] for i in alive]
            mapped, step = map_segment(mapped, prune)
            kept = kept[step]
            assert mapped.epoch == prune.epoch
        assert mapped.num_rows == len(rows)
        assert kept.tolist() == offsets
        assert mapped.parents.tolist() == parents
        assert mapped.payload.tolist() == segment.payload[offsets].tolist()
        assert mapped.positions.tolist() == segment.positions[offsets].tolist()
        if rows:
            assert rows == list(range(mapped.first_row, mapped.first_row + mapped.num_rows))
        if life == len(prunes) and rows and rows[0] >= sequence.context:
            offset = rows[0] - sequence.context
            assert parents == sequence.parents[offset : offset + len(rows)].tolist()
            assert mapped.positions.tolist() == sequence.positions[offset : offset + len(rows)].tolist()


@given(chains())
@EXAMPLES
def test_rows_and_parents_are_renumbered_as_dicts_do(chain):
    _, _, prunes, dicts = chain
    for prune, (to_new, new_context) in zip(prunes, dicts, strict=True):
        rows = np.array(sorted(to_new), dtype=np.int64)
        assert renumbered(prune, rows).tolist() == [to_new[r] for r in rows.tolist()]
        want = [CONTEXT if to_new[r] < new_context else to_new[r] for r in rows.tolist()]
        assert renumbered_parents(prune, rows).tolist() == want
        assert renumbered_parents(prune, np.array([CONTEXT])).tolist() == [CONTEXT]
        for first in range(prune.source_len):
            for count in (0, 1, 3):
                inside = [r - first for r in prune.retained.tolist() if first <= r < first + count]
                assert retained_from(prune, first, count).tolist() == inside


@given(chains())
@EXAMPLES
def test_prunes_of_the_sequence_pass_the_stages_check(chain):
    _, segments, prunes, _ = chain
    if prunes:
        check_prune(prunes[0], segments[0][0].first_row, prunes[0].source_len)
    for before, after in pairwise(prunes):
        length = before.context + len(before.retained)
        assert after.source_len == length
        check_prune(after, before.context + before.accepted, length)


def test_a_segment_that_is_left_empty_is_a_header():
    mapped, kept = map_segment(segment_of(5, [4, 5]), prune_of(1, 7, 3, 1, [3]))
    assert mapped.num_rows == len(kept) == 0
    assert mapped.payload.shape == (0,)
    assert mapped.epoch == 1


def test_a_segment_of_one_row_keeps_its_parent():
    mapped, _ = map_segment(segment_of(9, [7]), prune_of(1, 12, 5, 2, [5, 6, 7, 9]))
    assert (mapped.first_row, mapped.parents.tolist()) == (8, [7])
    mapped, _ = map_segment(segment_of(9, [6]), prune_of(1, 12, 5, 2, [5, 6, 9]))
    assert (mapped.first_row, mapped.parents.tolist()) == (7, [CONTEXT])


def test_committed_rows_are_restamped_only():
    segment = segment_of(3, [2, 3], committed=True)
    mapped, kept = map_segment(segment, prune_of(4, 9, 3, 0, []))
    assert (mapped.epoch, mapped.first_row, mapped.num_rows) == (4, 3, 2)
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("prune", "problem"),
    [
        (prune_of(1, 8, 2, 1, [3, 4]), "starts from context 2"),
        (prune_of(1, 8, 4, 1, [4, 5]), "starts from context 4"),
        (prune_of(1, 5, 3, 1, [3, 4]), "but 6 are cached"),
        (prune_of(1, 8, 3, 3, [3, 4]), "accepts 3 of 2"),
        (prune_of(1, 8, 3, -1, [3, 4]), "accepts -1"),
        (prune_of(1, 8, 3, 1, [2, 4]), "ascending rows from 3"),
        (prune_of(1, 8, 3, 1, [3, 8]), "below 8"),
        (prune_of(1, 8, 3, 1, [3, 3]), "ascending"),
        (prune_of(1, 8, 3, 1, [5, 4]), "ascending"),
        (prune_of(1, 8, 3, 2, [3, 6]), "accepts row 6"),
        (prune_of(1, 8, 3, 2, [6, 7]), "accepts row 7"),
    ],
)
def test_a_prune_that_does_not_fit_is_refused(prune, problem):
    with pytest.raises(ProtocolError, match=problem):
        check_prune(prune, context=3, cached=6)


def test_rows_that_are_still_upstream_may_be_retained_but_not_accepted():
    check_prune(prune_of(1, 8, 3, 2, [3, 5, 6, 7]), context=3, cached=6)
    check_prune(prune_of(1, 8, 3, 0, []), context=3, cached=6)
    with pytest.raises(ProtocolError):
        check_prune(prune_of(1, 8, 3, 4, [3, 5, 6, 7]), context=3, cached=6)


# ------------------------------------------------------------------------------------------------ outbox


def drain(outbox: Outbox) -> list:
    messages = []
    while (message := outbox.pop()) is not None:
        messages.append(message)
    return messages


def test_an_outbox_is_first_in_first_out():
    outbox = Outbox()
    messages = [Open("s", 9), segment_of(0, [-1]), Credit("s"), Close("s")]
    for message in messages:
        outbox.put(message)
    assert len(outbox) == 4
    assert drain(outbox) == messages
    assert outbox.pop() is None


def test_a_prune_goes_in_once_before_the_first_segment_of_its_session():
    outbox = Outbox()
    other = segment_of(3, [-1, 3], session="t")
    for message in (Open("s", 9), other, segment_of(3, [-1, 3]), segment_of(5, [4, 3], number=1)):
        outbox.put(message)
    prune = prune_of(1, 7, 3, 1, [3, 4, 5])
    assert outbox.prune(prune) == 1
    opened, untouched, placed, first, second = drain(outbox)
    assert isinstance(opened, Open)
    assert untouched is other
    assert placed is prune
    assert (first.epoch, first.first_row, first.parents.tolist()) == (1, 3, [CONTEXT, CONTEXT])
    assert (second.epoch, second.first_row, second.parents.tolist()) == (1, 5, [4])


def test_a_prune_without_segments_goes_to_the_end():
    outbox = Outbox()
    fault = Fault("t", "v1", "protocol", "x")
    outbox.put(fault)
    prune = prune_of(1, 3, 3, 0, [])
    assert outbox.prune(prune) == 0
    assert drain(outbox) == [fault, prune]


def test_a_prune_that_takes_its_turn_goes_behind_segments_which_stay_whole():
    outbox = DraftNodeOutbox()
    before = segment_of(3, [-1, 3])
    outbox.put(before)
    prune = replace(prune_of(1, 7, 3, 1, [3, 4, 5]), in_turn=True)
    outbox.prune(prune)
    outbox.put(segment_of(6, [5], epoch=1, number=1))
    following = prune_of(2, 7, 4, 0, [])
    outbox.prune(following)
    first, second, third, last = drain(outbox.in_band)
    assert first is before
    assert (second, third) == (prune, following)
    assert (last.epoch, last.num_rows) == (2, 0)
    assert outbox.take_express() == [following]


def test_prunes_stay_in_order_and_before_what_they_restamp():
    outbox = Outbox()
    outbox.put(segment_of(5, [4, 5]))  # rows 3 and 4 have come back
    outbox.put(segment_of(7, [5], number=1))
    outbox.prune(prune_of(1, 8, 3, 1, [3, 4, 5, 6, 7]))
    assert outbox.prune(prune_of(2, 8, 4, 1, [4, 5, 7])) == 1
    first, second, left, right = drain(outbox)
    assert [m.epoch for m in (first, second, left, right)] == [1, 2, 2, 2]
    assert (left.first_row, left.parents.tolist()) == (5, [CONTEXT])
    assert (right.first_row, right.parents.tolist()) == (6, [5])


def test_dropping_a_session_leaves_the_others_and_what_is_no_segment():
    outbox = Outbox()
    kept = segment_of(3, [-1], session="t")
    outbox.put(segment_of(3, [-1]))
    outbox.put(kept)
    prune = prune_of(1, 4, 3, 1, [3])
    outbox.prune(prune)
    outbox.drop_segments("s")
    assert drain(outbox) == [prune, kept]


@given(chains(), st.data())
@EXAMPLES
def test_outbound_segments_follow_every_prune_they_are_stamped_with(chain, data):
    _, segments, prunes, _ = chain
    outbox, sent = Outbox(), []
    queue = [segment for segment, life in segments if life == len(prunes)]
    for prune in prunes:
        while queue and data.draw(st.booleans()):
            outbox.put(queue.pop(0))
        if data.draw(st.booleans()) and (message := outbox.pop()) is not None:
            sent.append(message)
        outbox.prune(prune)
        queue = [map_segment(segment, prune)[0] for segment in queue]
    for segment in queue:
        outbox.put(segment)
    sent += drain(outbox)
    assert [m.epoch for m in sent if isinstance(m, Prune)] == [p.epoch for p in prunes]
    numbers = [segment.number for segment, life in segments if life == len(prunes)]
    assert [m.number for m in sent if isinstance(m, Segment)] == numbers
    fence = 0
    for message in sent:
        if isinstance(message, Prune):
            fence = message.epoch
        else:
            assert message.epoch == fence, "a link's segments are of the epoch of its last prune"
