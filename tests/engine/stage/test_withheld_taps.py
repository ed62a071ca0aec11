"""What a stage keeps follows the numbering of its session, and goes out with the rows that are accepted."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.errors import ProtocolError
from flowedge.engine.stage.stage_session import WithheldTaps
from tests.engine.rig import prune


def rows(*numbers: int) -> np.ndarray:
    """Rows with two values of a hidden state, then three tapped ones; all of a row are its number."""
    return np.repeat(np.array(numbers, dtype=np.float32)[:, None], 5, axis=1)


def tapped(*numbers: int) -> list[list[float]]:
    return [[float(number)] * 3 for number in numbers]


def test_accepted_rows_go_out_and_dropped_ones_are_forgotten() -> None:
    kept = WithheldTaps(hidden=2)
    np.testing.assert_array_equal(kept.take(rows(10, 11, 12)), rows(10, 11, 12)[:, :2])
    kept.take(rows(13))
    first = kept.apply(prune(epoch=1, source_len=16, context=10, accepted=2, retained=[10, 12, 13, 15]))
    assert first is not None and first.tolist() == tapped(10, 12)
    kept.take(rows(15))
    assert kept.apply(prune(epoch=2, source_len=14, context=12, accepted=0, retained=[13])) is None
    last = kept.apply(prune(epoch=3, source_len=13, context=12, accepted=1, retained=[12]))
    assert last is not None and last.tolist() == tapped(15)


def test_a_row_that_is_not_computed_cannot_be_accepted() -> None:
    kept = WithheldTaps(hidden=2)
    kept.take(rows(4))
    with pytest.raises(ProtocolError, match="prune 1 accepts rows that are not computed yet"):
        kept.apply(prune(epoch=1, source_len=6, context=4, accepted=2, retained=[4, 5]))
