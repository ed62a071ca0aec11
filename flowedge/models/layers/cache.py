"""The key-value cache of one session on one block of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.models.layers.copies import to_device

_ALIGNED_COLUMNS = 16  # views of a mask begin at a multiple of this many columns


def head_size(config: Any) -> int:
    """The width of one attention head of a transformers config."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


class SessionCache:
    """Keys and values of all rows of one session, in buffers that are allocated once.

    The object is the `past_key_values` of transformers' attention layers, which call `update`. A layer with
    a window stores all rows, because positions fall again after a prune, and reads the rows in its window.

    Attributes:
        kv: [layers, 2, kv_heads, capacity, head_size], keys at index 0 and values at 1; slot s holds row s.
    """

    def __init__(
        self,
        config: Any,
        num_layers: int,
        capacity_rows: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        windows: Sequence[int | None] = (),
    ) -> None:
        """Allocate `capacity_rows` rows.

        `windows` has the window of each layer in positions, as `layer_windows` returns them; empty for none.
        """
        if capacity_rows < 1:
            raise CapacityError(f"a cache of {capacity_rows} rows cannot hold a session; it needs 1 or more")
        shape = (num_layers, 2, config.num_key_value_heads, capacity_rows, head_size(config))
        self.kv = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity_rows
        self._windows = list(windows) or [None] * num_layers
        self._masks = {window: AttentionMask(capacity_rows, dtype, device) for window in set(self._windows)}
        self._lows = [0] * num_layers  # the first slot that each layer reads
        self._start = 0
        self._stop = 0

    @staticmethod
    def bytes_per_row(config: Any, num_layers: int, dtype: torch.dtype) -> int:
        """The bytes of one row in `num_layers` layers."""
        return num_layers * 2 * int(config.num_key_value_heads) * head_size(config) * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes allocated now, mask buffers included."""
        return self.kv.nbytes + sum(mask.nbytes for mask in self._masks.values())

    def begin(self, cached: int, rows: int) -> None:
        """Choose the slots [cached, cached + rows) that the following updates write.

        Raises:
            CapacityError: when the slots do not fit.
        """
        if cached + rows > self.capacity:
            raise CapacityError(
                f"rows [{cached}, {cached + rows}) do not fit the session's cache of {self.capacity} rows"
            )
        self._start, self._stop = cached, cached + rows
        self._lows = [0] * len(self._windows)

    def write_masks(
        self, context: int, tail_parents: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> list[torch.Tensor]:
        """The mask of each layer for the rows of the last `begin`, as `AttentionMask.write` returns it.

        Until the next `begin`, each layer reads from the slot that its mask begins at.

        Args:
            tail_parents: int64 [tail], as in `visible_tail`; positions: int64 [rows].
        """
        seen = visible_tail(tail_parents, context, positions.size)
        written: dict[int | None, torch.Tensor] = {}
        for window, mask in self._masks.items():
            if window is None:
                written[window] = mask.write(context, seen)
                continue
            first_seen = positions - (window - 1)
            tail_positions = context + tail_depths(tail_parents, context)
            within = seen & (tail_positions >= first_seen[:, None])
            written[window] = mask.write(context, within, first_seen)
        self._lows = [self._stop - written[window].shape[-1] for window in self._windows]
        return [written[window] for window in self._windows]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values [1, kv_heads, rows, head_size]; return views of rows to read."""
        layer_kv = self.kv[layer]
        layer_kv[0, :, self._start : self._stop] = keys[0]
        layer_kv[1, :, self._start : self._stop] = values[0]
        live = layer_kv[:, None, :, self._lows[layer] : self._stop]
        return live[0], live[1]

    def gather(self, base: int, slots: Sequence[int] | npt.NDArray[np.integer[Any]]) -> None:
        """Move row slots[i] to row base + i, in all layers.

        Raises:
            ProtocolError: when the slots are not strictly ascending within [base, capacity).
        """
        wanted = np.asarray(slots, dtype=np.int64)
        if wanted.ndim != 1 or base < 0:
            raise ProtocolError(f"slots gathered to slot {base} are no flat list of slots from 0 up")
        if not wanted.size:
            return
        if wanted[0] < base or wanted[-1] >= self.capacity or (np.diff(wanted) <= 0).any():
            raise ProtocolError(f"gathered slots must ascend within [{base}, {self.capacity})")
        moved = wanted != np.arange(base, base + wanted.size)
        first = int(moved.argmax()) if moved.any() else wanted.size
        if first == wanted.size:
            return
        (index,) = to_device(self.kv.device, wanted[first:])
        # index_select copies the rows that move, so that overlapping moves are right.
        self.kv[:, :, :, base + first : base + wanted.size] = self.kv.index_select(3, index)


class AttentionMask:
    """The additive mask buffer of a session and a window. Each write changes only columns that may differ."""

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device | str) -> None:
        # A constant: with a fill computed from the mask, a row that sees one key would see all of them.
        self.fill = torch.finfo(dtype).min
        self._buffer = torch.zeros((0, capacity), dtype=dtype, device=device)
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


def tail_depths(parents: npt.NDArray[np.int64], context: int) -> npt.NDArray[np.int64]:
    """The depth [tail] of each row of a draft tail, 0 for a child of the context; `parents` as below."""
    depths = np.arange(parents.size)
    local = np.where(parents == -1, -1, parents - context)
    if not (local == depths - 1).all():
        for row, parent in enumerate(local.tolist()):
            depths[row] = 0 if parent == -1 else depths[parent] + 1
    return depths


def visible_tail(parents: npt.NDArray[np.int64], context: int, rows: int) -> npt.NDArray[np.bool_]:
    """The tail rows that each of the last `rows` rows of a draft tail sees: its ancestors and itself.

    Args:
        parents: [tail], the parent slot of each tail row, -1 for the context; row i is slot context + i.

    Returns:
        Booleans [rows, tail].

    Raises:
        ProtocolError: when a parent does not come before its child.
    """
    tail = parents.size
    own = np.arange(tail)
    local = np.where(parents == -1, -1, parents - context)
    if ((local < -1) | (local >= own) | ((parents < context) & (parents != -1))).any():
        raise ProtocolError(f"a tail row's parent is neither -1 nor an earlier slot from {context} up")
    if (local == own - 1).all():
        return np.tri(rows, tail, tail - rows, dtype=np.bool_)
    seen = np.eye(tail, dtype=np.bool_)
    for row in np.flatnonzero(local >= 0):
        seen[row] |= seen[local[row]]
    return seen[tail - rows :]
