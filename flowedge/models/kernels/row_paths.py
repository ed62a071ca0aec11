"""The slots that the rows of a forward read, as the kernels are told."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import ProtocolError
from flowedge.models.attention.draft_rows import draft_depths


@dataclass(frozen=True, eq=False)
class RowPaths:
    """Where each row finds the keys of its path, by position.

    Attributes:
        positions: int64 [rows].
        linear: int64 [rows]; below this position, the slot is the position. Beyond its own position, a row
            sees these too.
        offsets: int64 [rows], the index in `slots` of the slot of position `linear`.
        slots: int64, the slots of each row from position `linear` to the row itself.
    """

    positions: IntArray
    linear: IntArray
    offsets: IntArray
    slots: IntArray


def placed_depths(context: int, tail_parents: IntArray, positions: IntArray) -> IntArray:
    """Return the depths [rows] of the last rows of a draft tail; arguments and errors as of `row_paths`."""
    depths = draft_depths(tail_parents, context)[tail_parents.size - positions.size :]
    if (context + depths != positions).any():
        raise ProtocolError(f"the rows have the positions {positions.tolist()}, not their places in the tree")
    return depths


def row_paths(context: int, tail_parents: IntArray, positions: IntArray) -> RowPaths:
    """Return the paths of the last rows of a draft tail.

    Args:
        tail_parents: int64 [tail], the parent slot of each tail row; -1 for the last row of the context.
        positions: int64 [rows], the positions of the last rows of the tail.

    Raises:
        ProtocolError: when a parent does not come before its child, or a position is not a row's depth.
    """
    positions = np.ascontiguousarray(positions)
    tail, rows = tail_parents.size, positions.size
    depths = placed_depths(context, tail_parents, positions)
    first = context + tail - rows
    if depths.size and depths[-1] == tail - 1:  # the tail is a chain
        return RowPaths(positions, np.arange(first, context + tail) + 1, np.zeros(rows, np.int64), _NO_SLOTS)
    linear, offsets, slots = np.empty(rows, np.int64), np.empty(rows, np.int64), list[int]()
    parents = tail_parents.tolist()
    for row in range(rows):
        path = _path(parents, context, first + row)
        in_place = next((i for i, slot in enumerate(path) if slot != context + i), len(path))
        linear[row], offsets[row] = context + in_place, len(slots)
        slots += path[in_place:]
    return RowPaths(positions, linear, offsets, np.array(slots, dtype=np.int64))


_NO_SLOTS = np.zeros(0, dtype=np.int64)


def _path(parents: list[int], context: int, slot: int) -> list[int]:
    """The slots from the context's child to `slot`."""
    path = []
    while slot != -1:
        path.append(slot)
        slot = parents[slot - context]
    return path[::-1]
