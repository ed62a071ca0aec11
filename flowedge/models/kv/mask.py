"""The additive mask of a session's rows, in a buffer whose tail columns alone are rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from flowedge.models.copies import HostArray, to_device

_ALIGNED_COLUMNS = 16  # views of a mask begin at a multiple of this many columns


@dataclass(frozen=True, eq=False)
class MaskRows:
    """The columns that each row of a forward sees.

    Attributes:
        context: the columns below it are the context.
        seen: [rows, tail], True where a row sees a column of [context, context + tail).
        first_seen: [rows], the first column of the context that each row sees; None for 0.
    """

    context: int
    seen: npt.NDArray[np.bool_]
    first_seen: npt.NDArray[np.int64] | None = None

    @cached_property
    def edge(self) -> slice:
        """The columns of the context that some rows see and others do not, and up to 15 columns before."""
        if self.first_seen is None:
            return slice(0, 0)
        first = self.first_seen.clip(0, self.context)
        # Kernels want views of keys and mask to begin at a multiple of 16 bytes.
        return slice(int(first.min()) // _ALIGNED_COLUMNS * _ALIGNED_COLUMNS, int(first.max()))

    def hidden(self) -> list[HostArray]:
        """What each row does not see of the tail [rows, tail], and of the edge, if there is one."""
        if self.first_seen is None:
            return [~self.seen]
        return [~self.seen, np.arange(self.edge.start, self.edge.stop) < self.first_seen[:, None]]


def write_masks(masks: Sequence[AttentionMask], rows: Sequence[MaskRows]) -> list[torch.Tensor]:
    """Write the rows of each mask, after one copy to the device of all masks; see `AttentionMask.write`."""
    arrays = [each.hidden() for each in rows]
    copied = iter(to_device(masks[0].device, *(array for own in arrays for array in own)))
    return [
        mask.write(own, [next(copied) for _ in hidden])
        for mask, own, hidden in zip(masks, rows, arrays, strict=True)
    ]


class AttentionMask:
    """The additive mask buffer of a session and a window. Each write changes only columns that may differ."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device | str) -> None:
        # A constant: with a fill computed from the mask, a row that sees one key would see all of them.
        self.fill = torch.finfo(dtype).min
        self._buffer = torch.zeros((0, capacity), dtype=dtype, device=device)
        self._clean = 0  # columns below are visible to every row, except for those of _edge
        self._edge = slice(0, 0)  # context columns that the last write hid from some row

    @property
    def device(self) -> torch.device:
        return self._buffer.device

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def write(self, own: MaskRows, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        """Write the mask of some rows.

        Args:
            hidden: the arrays of `own.hidden()`, on the device.

        Returns:
            A view [1, 1, rows, columns] of the buffer, valid until the next write: 0 where a row sees a
            column, the fill elsewhere. The last column is context + tail - 1. The first is 0, or with
            `first_seen` up to 15 columns before the first that some row sees.
        """
        context, (rows, tail) = own.context, own.seen.shape
        self._reserve(rows)
        if context > self._clean:
            self._buffer[:, self._clean : context] = 0
        self._clean = context
        self._buffer[:, self._edge] = 0
        self._edge = own.edge
        for part in hidden[1:]:
            self._buffer[:rows, self._edge].masked_fill_(part, self.fill)
        block = self._buffer[:rows, context : context + tail]
        block.zero_().masked_fill_(hidden[0], self.fill)
        return self._buffer[None, None, :rows, own.edge.start : context + tail]

    def _reserve(self, rows: int) -> None:
        held, capacity = self._buffer.shape
        if rows <= held:
            return
        # Zeros are right for columns below _clean; each write sets the columns above.
        self._buffer = self._buffer.new_zeros((max(rows, 2 * held, 16), capacity))
