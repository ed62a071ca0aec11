"""The rows that one forward of a block computes: of one session, or of several sessions together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.models.copies import moved, to_device, to_host
from flowedge.models.exact.row_counts import RowCounts
from flowedge.models.kv.tail import tail_depths
from flowedge.models.layers.cache import SessionCache
from flowedge.models.native.paths import RowPaths, placed_depths, row_paths


@dataclass(frozen=True, eq=False)
class SessionRows:
    """n consecutive rows of a session, whose keys and values go to the slots [cached, cached + n).

    Attributes:
        inputs: int64 token ids [n] in the first block; hidden rows [n, hidden] of its dtype in others.
        positions: int64 [n], absolute: the context plus the row's depth, so at most the row's slot.
        context: slots below it are committed and visible to every row.
        tail_parents: int64 [cached + n - context], the parent slot of each tail row; -1 for the last row of
            the context. A tail row sees the context, its ancestors and itself. Consecutive committed rows
            form a chain.
    """

    inputs: torch.Tensor
    positions: IntArray
    cache: SessionCache
    cached: int
    context: int
    tail_parents: IntArray

    @property
    def count(self) -> int:
        return len(self.inputs)

    @property
    def paths(self) -> RowPaths:
        """The slots that the rows read, for the kernels. Raises ProtocolError as `row_paths`."""
        return row_paths(self.context, self.tail_parents, self.positions)

    def check_paths(self, *, placed: bool) -> None:
        """Raise ProtocolError when a parent does not come before its child.

        Args:
            placed: whether it is an error, too, that a position is not the row's place in the tree.
        """
        if placed:
            placed_depths(self.context, self.tail_parents, self.positions)
        else:
            tail_depths(self.tail_parents, self.context)

    def cut(self, start: int, stop: int) -> SessionRows:
        """Return the rows [start, stop)."""
        if stop - start == self.count:
            return self
        return SessionRows(
            self.inputs[start:stop],
            self.positions[start:stop],
            self.cache,
            self.cached + start,
            self.context,
            self.tail_parents[: self.cached + stop - self.context],
        )


@dataclass(frozen=True, eq=False)
class RowPiece:
    """Rows of one part of a forward; `part` is the part's index."""

    part: int
    rows: SessionRows


def joined_inputs(parts: Sequence[SessionRows], device: torch.device) -> torch.Tensor:
    """Return the inputs of all parts on the device, in one copy where they come from the host together."""
    inputs = [part.inputs for part in parts]
    if len(inputs) == 1:
        return moved(inputs[0], device)
    if device.type != "cpu" and all(own.is_cpu for own in inputs):
        (copied,) = to_device(device, np.concatenate([to_host(own)[0] for own in inputs]))
        return copied
    return torch.cat([moved(own, device) for own in inputs])


def batches(parts: Sequence[SessionRows], counts: RowCounts) -> Iterator[list[RowPiece]]:
    """Divide the rows of parts, in their order, into batches that are computed one after the other.

    A batch has at most `counts.most` rows. Rows of one cache are in it once, so that a second part of a
    session is computed after the first.
    """
    batch: list[RowPiece] = []
    rows = 0
    for index, part in enumerate(parts):
        start = 0
        while start < part.count:
            if rows == counts.most or any(piece.rows.cache is part.cache for piece in batch):
                yield batch
                batch, rows = [], 0
            stop = min(part.count, start + counts.most - rows)
            batch.append(RowPiece(index, part.cut(start, stop)))
            rows += stop - start
            start = stop
    yield batch
