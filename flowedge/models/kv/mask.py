"""The additive mask of a session's rows, in a buffer whose tail columns alone are rewritten."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from flowedge.models.copies import to_device

_ALIGNED_COLUMNS = 16  # views of a mask begin at a multiple of this many columns


class AttentionMask:
    """The additive mask buffer of a session and a window. Each write changes only columns that may differ."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device | str) -> None:
        # A constant: with a fill computed from the mask, a row that sees one key would see all of them.
        self.fill = torch.finfo(dtype).min
        # Rows begin at aligned addresses as well; torch would copy another mask in every layer on CUDA.
        aligned = -(-capacity // _ALIGNED_COLUMNS) * _ALIGNED_COLUMNS
        self._buffer = torch.zeros((0, aligned), dtype=dtype, device=device)
        self._clean = 0  # columns below are visible to every row, except for those of _edge
        self._edge = slice(0, 0)  # context columns that the last write hid from some row

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def write(
        self,
        context: int,
        tail_rows: npt.NDArray[np.bool_],
        first_seen: npt.NDArray[np.int64] | None = None,
    ) -> torch.Tensor:
        """Write the mask of some rows.

        Args:
            tail_rows: [rows, tail], True where a row sees a column of [context, context + tail).
            first_seen: [rows], the first column of the context that each row sees; 0 by default.

        Returns:
            A view [1, 1, rows, columns] of the buffer, valid until the next write: 0 where a row sees a
            column, the fill elsewhere. The last column is context + tail - 1. The first is 0, or with
            `first_seen` up to 15 columns before the first that some row sees.
        """
        rows, tail = tail_rows.shape
        self._reserve(rows)
        if context > self._clean:
            self._buffer[:, self._clean : context] = 0
        self._clean = context
        self._buffer[:, self._edge] = 0
        low = 0 if first_seen is None else self._write_edge(first_seen.clip(0, context))
        (hidden,) = to_device(self._buffer.device, ~tail_rows)
        block = self._buffer[:rows, context : context + tail]
        block.zero_().masked_fill_(hidden, self.fill)
        return self._buffer[None, None, :rows, low : context + tail]

    def _write_edge(self, first_seen: npt.NDArray[np.int64]) -> int:
        # Kernels want views of keys and mask to begin at a multiple of 16 bytes.
        low = int(first_seen.min()) // _ALIGNED_COLUMNS * _ALIGNED_COLUMNS
        high = int(first_seen.max())
        (hidden,) = to_device(self._buffer.device, np.arange(low, high) < first_seen[:, None])
        self._edge = slice(low, high)
        self._buffer[: first_seen.size, self._edge].masked_fill_(hidden, self.fill)
        return low

    def _reserve(self, rows: int) -> None:
        held, capacity = self._buffer.shape
        if rows <= held:
            return
        # Zeros are right for columns below _clean; each write sets the columns above.
        self._buffer = self._buffer.new_zeros((max(rows, 2 * held, 16), capacity))
