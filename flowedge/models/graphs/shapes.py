"""The sizes of static forwards: few, since each size is captured for itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.models.copies import HostArray
from flowedge.models.exact.reading_plan import CHUNK
from flowedge.models.exact.row_counts import RowCounts

_ROWS = (1, 8, 16, 32, 64)
_LEAST_SLOTS = 256
SCRATCH_SHARE = 1.25  # most slots of a cache for a row of its session


@dataclass(frozen=True)
class StaticShape:
    """The sizes of the tensors of a static forward.

    Attributes:
        rows: rows that are computed, padding included.
        columns: slots of the cache that attention reads, from slot 0 on.
    """

    rows: int
    columns: int

    def padded(self, array: HostArray) -> HostArray:
        """Repeat the last row of an array [n, ...] until there are `rows` rows."""
        missing = self.rows - len(array)
        padded: HostArray = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), "edge")
        return padded

    def slots(self, first: int, stop: int, scratch: int) -> IntArray:
        """Return int64 [rows]: the slots [first, stop), then the scratch slot for rows of padding."""
        return np.pad(np.arange(first, stop), (0, self.rows - (stop - first)), constant_values=scratch)


def static_rows(allowed: RowCounts | None) -> tuple[int, ...]:
    """Return the numbers of rows, ascending, that forwards are padded to.

    Args:
        allowed: the numbers of rows for which a row has the same bits; None when a row's bits may differ.
    """
    if allowed is None:
        return _ROWS
    return tuple(sorted({allowed.padded(rows) for rows in _ROWS if rows <= allowed.most}))


def choose_shape(counts: Sequence[int], rows: int, stop: int, slots: int) -> StaticShape | None:
    """Choose the smallest shape for `rows` rows; None when they are too many.

    Args:
        counts: the numbers of rows that forwards are padded to, ascending.
        stop: the slot behind the last row; slots: the slots of the cache, a result of `static_slots`.
    """
    index = bisect_left(counts, rows)
    if index == len(counts) or stop > slots:
        return None
    columns = _LEAST_SLOTS
    while columns < stop:
        columns *= 2
    return StaticShape(counts[index], min(columns, slots))


def static_slots(capacity: int) -> int:
    """The slots of a cache of `capacity` rows: at most a quarter more, or 127 more, or 256 in all.

    Few different numbers of slots let sessions reuse the caches of ended sessions.
    """
    step = max(CHUNK, 1 << max(0, capacity.bit_length() - 3))
    return max(_LEAST_SLOTS, -(-capacity // step) * step)


def row_bytes_with_scratch(row_bytes: int) -> int:
    """Return the most bytes of a cache for each row of its session, where a row itself takes `row_bytes`.

    Every sum of memory takes the figure from here: before a model is loaded, and afterwards. It holds for
    capacities from 512 on; smaller caches take at most 127 rows more than their capacity, or 256 rows in all.
    """
    return int(row_bytes * SCRATCH_SHARE)
