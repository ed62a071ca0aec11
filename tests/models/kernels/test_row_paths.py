"""The slots that rows read, against walks from child to parent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import ProtocolError
from flowedge.models.kernels.row_paths import row_paths


@settings(deadline=None)  # a machine may be busy
@given(st.data())
def test_each_row_reads_its_own_path(data: st.DataObject) -> None:
    context = data.draw(st.integers(0, 5))
    tail = data.draw(st.integers(1, 12))
    parents = [data.draw(st.integers(-1, row - 1)) for row in range(tail)]
    rows = data.draw(st.integers(1, tail))
    own_paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        own_paths.append([*(own_paths[parent] if parent >= 0 else []), context + row])
    positions = np.array([context + len(path) - 1 for path in own_paths])[-rows:]
    stored = np.array([-1 if parent == -1 else context + parent for parent in parents])
    found = row_paths(context, stored, positions)
    for row, path in enumerate(own_paths[-rows:]):
        wanted = [*range(context), *path]
        linear, offset = int(found.linear[row]), int(found.offsets[row])
        rest = found.slots[offset : offset + len(wanted) - linear].tolist()
        assert [*range(min(linear, len(wanted))), *rest] == wanted


@pytest.mark.parametrize(
    ("parents", "positions"),
    [([-1, 4, 4], [4, 5, 6]), ([-1, -1], [4, 5]), ([4], [4]), ([-1, 3], [4, 5]), ([-1, 6], [4, 5])],
)
def test_rows_that_contradict_their_tree_are_refused(parents: list[int], positions: list[int]) -> None:
    with pytest.raises(ProtocolError):
        row_paths(4, np.array(parents), np.array(positions))
