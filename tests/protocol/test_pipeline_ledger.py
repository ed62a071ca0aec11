"""The ledger of a session: its credits, and what may be sent of the prompt."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Segment
from flowedge.protocol.epochs import map_segment
from flowedge.protocol.pipeline_ledger import PipelineLedger
from flowedge.protocol.row_sequence import RowSequence


def test_credits_answer_segments_and_are_told_of_once():
    ledger = PipelineLedger("s", (1, 2, 3))
    assert (ledger.credits, ledger.take_grants(), ledger.take_grants()) == (1, 1, 0)
    ledger.commit((4,))
    assert (ledger.credits, ledger.take_grants()) == (0, 0)
    ledger.grant()
    assert (ledger.credits, ledger.take_grants(), ledger.take_grants()) == (1, 1, 0)
    ledger.grant()
    assert ledger.credits == 1, "a credit of a segment that this ledger has not sent"


def test_a_prompt_is_sent_in_order_while_there_are_credits():
    ledger = PipelineLedger("s", (1, 2, 3, 4, 5), reused=1)
    assert ledger.next_prompt_segment(2).payload.tolist() == [2, 3]
    assert ledger.next_prompt_segment(2) is None
    ledger.grant()
    assert ledger.next_prompt_segment(8).payload.tolist() == [4, 5]
    ledger.grant()
    assert ledger.next_prompt_segment(1) is None


@pytest.mark.parametrize(("in_turn", "cached"), [(False, [1, 2, 3]), (True, [1, 2])])
def test_rows_of_a_prune_that_waits_for_its_turn_are_cached_when_it_is_back(in_turn, cached):
    ledger = PipelineLedger("s", (1, 2), reused=2)
    sent = ledger.append((3,), (CONTEXT,))
    ledger.take_back(replace(sent, payload=np.zeros((1, 1), np.float32)), (1,), "float32")
    ledger.prune(ledger.sequence.prune((2,), None, in_turn=in_turn))
    assert ledger.cached_tokens.tolist() == cached
    ledger.pass_fence(1)
    assert ledger.cached_tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", range(30))
def test_segments_return_as_copies_that_every_prune_maps(seed):
    """The ledger knows where rows are; its plain form keeps copies of the segments in flight."""
    random = np.random.default_rng(seed)
    ledger, copies = PipelineLedger("s", (5, 6, 7)), deque[Segment]()
    ledger.credits = 100
    copies.append(ledger.next_prompt_segment(2))
    copies.append(ledger.next_prompt_segment(2))
    while ledger.sent < 40 or copies:
        sequence = ledger.sequence
        if ledger.sent < 40 and random.uniform() < 0.6:
            first, count = sequence.length, int(random.integers(1, 6))
            parents = [
                CONTEXT if row == sequence.context else int(random.integers(sequence.context, row))
                for row in range(first, first + count)
            ]
            copies.append(ledger.append(tuple(range(count)), tuple(parents)))
            continue
        if not copies:
            continue
        came = copies.popleft()
        rows = np.zeros((came.num_rows, 1), np.float32)
        ledger.take_back(replace(came, payload=rows), (1,), "float32")  # which refuses other rows
        if came.committed or not came.num_rows:
            continue
        prune = sequence.prune((came.first_row,), _child(sequence, came))
        ledger.prune(prune)
        ledger.pass_fence(prune.epoch)
        copies = deque(map_segment(copy, prune)[0] for copy in copies)
    assert ledger.all_returned


def _child(sequence: RowSequence, returned: Segment) -> int | None:
    """Return a child of the first row of a segment that has not come back; None if there is none."""
    upstream = range(returned.first_row + returned.num_rows, sequence.length)
    rows = [row for row in upstream if sequence.parents[row - sequence.context] == returned.first_row]
    return rows[0] if rows else None


@pytest.mark.parametrize(
    "changed", [{"first_row": 4}, {"positions": [3, 5]}, {"parents": [CONTEXT, CONTEXT]}]
)
def test_a_segment_with_other_rows_is_refused(changed):
    ledger = PipelineLedger("s", (5, 6, 7), reused=3)
    sent = ledger.append((1, 2), (CONTEXT, 3))
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in changed.items()}
    came = replace(sent, payload=np.zeros((2, 1), np.float32))
    with pytest.raises(ProtocolError, match="other rows"):
        ledger.take_back(replace(came, **arrays), (1,), "float32")
