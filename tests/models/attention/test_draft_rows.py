"""Which rows of a draft tail see which, and their depths."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import ProtocolError
from flowedge.models.attention.draft_rows import draft_depths, visible_drafts


def test_visible_tail_is_the_row_and_its_ancestors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        tail = int(rng.integers(1, 30))
        context = int(rng.integers(0, 50))
        local = [int(rng.integers(-1, i)) if i else -1 for i in range(tail)]
        if rng.random() < 0.2:
            local = list(range(-1, tail - 1))
        parents = np.array([p if p == -1 else p + context for p in local], dtype=np.int64)
        rows = int(rng.integers(1, tail + 1))
        expected = np.zeros((tail, tail), dtype=np.bool_)
        for row in range(tail):
            node = row
            while node != -1:
                expected[row, node] = True
                node = local[node]
        np.testing.assert_array_equal(visible_drafts(parents, context, rows), expected[tail - rows :])


def test_a_tail_of_a_single_row_sees_itself() -> None:
    assert visible_drafts(np.array([-1], dtype=np.int64), 0, 1).tolist() == [[True]]


def test_tail_depths_count_from_the_context() -> None:
    parents = np.array([-1, 30, 30, 32, -1, 31, 35])
    assert draft_depths(parents, 30).tolist() == [0, 1, 1, 2, 0, 2, 3]
    assert draft_depths(np.array([-1, 30, 31]), 30).tolist() == [0, 1, 2]
    assert draft_depths(np.array([], dtype=np.int64), 30).tolist() == []


@pytest.mark.parametrize("parents", [(-1, 1000), (-1, 31), (-1, 29), (-1, -2), (30,), (29,), (-1, -(2**63))])
def test_a_parent_that_does_not_come_before_its_child_is_refused(parents: tuple[int, ...]) -> None:
    tail = np.array(parents, dtype=np.int64)
    with pytest.raises(ProtocolError, match="earlier slot from 30 up"):
        draft_depths(tail, 30)
    with pytest.raises(ProtocolError, match="earlier slot from 30 up"):
        visible_drafts(tail, 30, 1)
