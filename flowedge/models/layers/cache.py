"""The key-value cache of one session on one block of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.models.copies import to_device
from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.kv.reading import CacheReader, MaskedReader, OrderedReader
from flowedge.models.kv.store import KeyValueStore, KvFormat, kv_row_bytes, new_store, store_shape


class SessionCache:
    """Keys and values of all rows of one session, in buffers that are allocated once.

    The object is the `past_key_values` of transformers' attention layers, which call `update`. A layer with
    a window stores all rows, because positions fall again after a prune, and reads the rows in its window.

    Attributes:
        capacity: rows that the session may use.
        store: the keys and values, of `capacity` rows or more.
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
        ordered: AttentionSizes | None = None,
        kv: KvFormat = "native",
        store: KeyValueStore | None = None,
    ) -> None:
        """Allocate `capacity_rows` rows, or use an allocated store of as many rows or more.

        Args:
            windows: the window of each layer in positions, as `layer_windows` returns them; empty for none.
            ordered: the sizes of ordered attention; None for attention with a mask.
            kv: the format of keys and values; attention with a mask takes "native" alone.
        """
        if capacity_rows < 1:
            raise CapacityError(f"a cache of {capacity_rows} rows cannot hold a session; it needs 1 or more")
        if kv != "native" and ordered is None:
            raise ValueError("a KV cache in 8 bits is read by ordered attention alone")
        self.capacity = capacity_rows
        self.store = store or new_store(store_shape(config, num_layers, capacity_rows), dtype, device, kv)
        windows = list(windows) or [None] * num_layers
        self._reader: CacheReader = (
            MaskedReader(self.store, windows, dtype, device)
            if ordered is None
            else OrderedReader(self.store, windows, ordered)
        )
        self._start = 0
        self._stop = 0

    @staticmethod
    def bytes_per_row(config: Any, num_layers: int, dtype: torch.dtype, kv: KvFormat = "native") -> int:
        """The bytes of one row in `num_layers` layers."""
        return num_layers * kv_row_bytes(config, dtype, kv)

    @property
    def kv(self) -> torch.Tensor:
        """[layers, 2, kv_heads, capacity, head_size], keys at index 0 and values at 1; slot s holds row s."""
        return self.store.kv.narrow(3, 0, self.capacity)

    @property
    def nbytes(self) -> int:
        """The bytes allocated now, mask buffers included."""
        return self.store.nbytes + self._reader.nbytes

    def check_room(self, cached: int, rows: int) -> None:
        """Raise CapacityError when the slots [cached, cached + rows) do not fit."""
        if cached + rows > self.capacity:
            raise CapacityError(
                f"rows [{cached}, {cached + rows}) do not fit the session's cache of {self.capacity} rows"
            )

    def begin(self, cached: int, rows: int) -> None:
        """Choose the slots [cached, cached + rows) that the following updates write.

        Raises:
            CapacityError: when the slots do not fit.
        """
        self.check_room(cached, rows)
        self._start, self._stop = cached, cached + rows

    def prepare(
        self,
        context: int,
        tail_parents: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        padded_rows: int | None = None,
    ) -> list[Any]:
        """Return the `attention_mask` of each layer for the rows of the last `begin`.

        Args:
            tail_parents: int64 [tail], as in `visible_tail`; positions: int64 [rows].
            padded_rows: rows that are computed; None for the rows alone.
        """
        rows = positions.size if padded_rows is None else padded_rows
        return self._reader.prepare(context, tail_parents, positions, rows)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values [1, kv_heads, rows or more, head_size] without the padding.

        Returns the keys and values that the layer's attention function is given.
        """
        rows = self._stop - self._start
        self.store.write(layer, self._start, keys[0, :, :rows], values[0, :, :rows])
        return self._reader.keys_values(layer, self._stop, keys, values)

    def store_rows(self, keys_values: torch.Tensor, layer: int) -> None:
        """Store a layer's keys and values [2, kv_heads, rows or more, head_size] without the padding."""
        rows = self._stop - self._start
        if keys_values.shape[2] != rows:
            keys_values = keys_values.narrow(2, 0, rows)
        self.store.write_both(layer, self._start, keys_values)

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values [1, kv_heads, context, head_size] for a layer's attention with a mask."""
        return self._reader.views(layer, self._stop)

    def copy(self, source: SessionCache, slots: npt.NDArray[np.int64]) -> None:
        """Make rows of another session's cache on the same block the first rows, in all layers.

        Args:
            slots: int64 [n], where the rows are in `source`.

        Raises:
            CapacityError: when the rows do not fit.
            ProtocolError: when a slot is not one of the source.
        """
        rows = slots.size
        if rows > self.capacity:
            raise CapacityError(f"{rows} rows do not fit the session's cache of {self.capacity} rows")
        if rows and not (slots.min() >= 0 and slots.max() < source.capacity):
            raise ProtocolError(f"copied slots must lie within [0, {source.capacity})")
        moved = slots != np.arange(rows)
        in_place = int(moved.argmax()) if moved.any() else rows
        self.store.copy(source.store, 0, slice(0, in_place))
        if in_place < rows:
            (index,) = to_device(self.kv.device, slots[in_place:])
            self.store.copy(source.store, in_place, index)

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
        self.store.move(base + first, index)
