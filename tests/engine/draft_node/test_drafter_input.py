"""Rows for the drafter are given to it when every stage has told what it kept of them."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import Tapped
from flowedge.engine.draft_node.drafter_input import DrafterInput
from tests.engine.rig import prune

KEPT = ((1, 2), (3, 5))  # of rows of six values


def values(count: int, width: int, value: float) -> np.ndarray:
    return np.full((count, width), value, dtype=np.float32)


def accepted(rows: int) -> object:
    return prune(epoch=1, source_len=100, context=50, accepted=rows, retained=list(range(50, 50 + rows)))


def waiting() -> DrafterInput:
    """A row of the prompt, and three draft rows in two prunes."""
    rows = DrafterInput(6, "float32", KEPT)
    rows.add(values(1, 6, 9.0), np.array([1]))
    for count in (1, 2):
        rows.add(values(count, 3, float(count)), np.arange(count))
        rows.accept(accepted(count))
    return rows


def test_rows_are_made_whole_in_their_order() -> None:
    rows = waiting()
    assert rows and not rows.complete
    rows.take_tapped(Tapped("s", 3, values(1, 2, 7.0)))
    rows.take_tapped(Tapped("s", 1, values(3, 1, 8.0)))
    rows.take_tapped(Tapped("s", 3, values(1, 2, 6.0)))
    assert not rows.complete, "the stage that keeps two values has told of two rows"
    rows.take_tapped(Tapped("s", 3, values(1, 2, 5.0)))
    assert rows.complete
    features, tokens = rows.take()
    assert features is not None
    assert features.tolist() == [
        [9] * 6,
        [1, 8, 1, 7, 7, 1],
        [2, 8, 2, 6, 6, 2],
        [2, 8, 2, 5, 5, 2],
    ]
    assert tokens.tolist() == [1, 0, 0, 1]
    assert not rows and rows.complete


def test_without_features_there_are_tokens_only() -> None:
    rows = DrafterInput(6, "float32", ())
    rows.add(None, np.array([4, 5]))
    rows.accept(accepted(2))
    assert rows.complete
    features, tokens = rows.take()
    assert features is None and tokens.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("tapped", "reason"),
    [
        (Tapped("s", 0, values(1, 1, 0)), "from column 0 of a row came; no stage was asked to keep"),
        (Tapped("s", 1, values(1, 2, 0)), r"float32 \[1, 2\]; 3 rows of 1 float32 are due"),
        (Tapped("s", 1, values(4, 1, 0)), r"float32 \[4, 1\]; 3 rows of 1 float32 are due"),
        (Tapped("s", 1, np.zeros(1, dtype=np.float32)), r"float32 \[1\]; 3 rows"),
        (Tapped("s", 1, np.zeros((1, 1), dtype=np.int32)), r"int32 \[1, 1\]; 3 rows"),
    ],
)
def test_what_does_not_fit_is_refused(tapped: Tapped, reason: str) -> None:
    rows = waiting()
    with pytest.raises(ProtocolError, match=reason):
        rows.take_tapped(tapped)
    rows.take_tapped(Tapped("s", 1, values(3, 1, 0)))
