"""The key-value cache of one session on one block of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowedge.core.arrays import IntArray
from flowedge.core.errors import CapacityError, PrefixLostError, ProtocolError
from flowedge.models.attention.attention import SeenKeys, SessionAttention
from flowedge.models.attention.kv_store import KeyValueStore, KvFormat, new_store
from flowedge.models.attention.masked import MaskedAttention
from flowedge.models.attention.ordered import AttentionSizes, OrderedAttention
from flowedge.models.families.parts import KeyHeads
from flowedge.models.host.copies import to_device
from flowedge.models.recurrent.row_states import RowStates


class KVCache:
    """Keys and values of all rows of one session, in buffers that are allocated once.

    On a CPU they take memory as rows are written (see lazy_zeros).

    A layer with a window stores all rows, because positions fall again after a prune, and attends to the
    rows in its window.

    Attributes:
        capacity: rows that the session may use.
        store: the keys and values, of `capacity` rows or more.
        states: what the rows own in recurrent layers; None in a block without such layers.
    """

    def __init__(
        self,
        heads: Sequence[KeyHeads],
        capacity_rows: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        windows: Sequence[int | None] = (),
        ordered: AttentionSizes | None = None,
        kv: KvFormat = "native",
        store: KeyValueStore | None = None,
        states: RowStates | None = None,
    ) -> None:
        """Allocate `capacity_rows` rows, or use an allocated store of as many rows or more.

        Args:
            heads: of the keys of each layer.
            windows: the window of each layer in positions, empty for none.
            ordered: the sizes of ordered attention; None for attention with a mask.
            kv: the format of keys and values; attention with a mask takes "native" alone.
        """
        if capacity_rows < 1:
            raise CapacityError(f"a cache of {capacity_rows} rows cannot hold a session; it needs 1 or more")
        if kv != "native" and ordered is None:
            raise ValueError("a KV cache in 8 bits is read by ordered attention alone")
        self.capacity, self.states = capacity_rows, states
        self.store = store or new_store(heads, capacity_rows, dtype, device, kv)
        windows = list(windows) or [None] * len(heads)
        self._attention: SessionAttention = (
            MaskedAttention(self.store, windows, dtype)
            if ordered is None
            else OrderedAttention(self.store, windows, ordered)
        )

    @property
    def kv(self) -> torch.Tensor:
        """[layers, 2, kv_heads, capacity, head_size], keys at index 0 and values at 1; slot s holds row s."""
        return self.store.kv.narrow(3, 0, self.capacity)

    @property
    def nbytes(self) -> int:
        """The bytes allocated now, mask buffers included."""
        of_states = 0 if self.states is None else self.states.nbytes
        return self.store.nbytes + self._attention.nbytes + of_states

    def check_capacity(self, cached: int, rows: int) -> None:
        """Raise CapacityError when the slots [cached, cached + rows) do not fit."""
        if cached + rows > self.capacity:
            raise CapacityError(
                f"rows [{cached}, {cached + rows}) do not fit the session's cache of {self.capacity} rows"
            )

    def seen_keys(
        self, cached: int, context: int, tail_parents: IntArray, positions: IntArray, rows: int
    ) -> CachedKeys:
        """Return the keys that new rows see, to which their own keys are added layer by layer.

        Args:
            cached: the slot of the first row.
            context, tail_parents, positions: as of SessionRows.
            rows: rows that are computed; those after the session's rows are padding.

        Raises:
            CapacityError: when the session's rows do not fit.
            ProtocolError: when a parent does not come before its child.
        """
        self.check_capacity(cached, positions.size)
        seen = self._attention.seen_keys(context, tail_parents, positions, rows)
        return CachedKeys(self.store, cached, positions.size, seen)

    def copy(self, source: KVCache, slots: npt.NDArray[np.int64], shared: int = 0) -> None:
        """Make rows of another session's cache on the same block the first rows, in all layers.

        Args:
            slots: int64 [n], where the rows are in `source`.
            shared: rows that are to lie in pages of both caches; 0 where all are copied. The cache is new
                then, and in `source` these rows are in their own slots.

        Raises:
            CapacityError: when the rows do not fit.
            ProtocolError: when a slot is not one of the source.
            PrefixLostError: when the state of recurrent layers is behind more rows, or there are no pages
                that both can have.
        """
        rows = slots.size
        if rows > self.capacity:
            raise CapacityError(f"{rows} rows do not fit the session's cache of {self.capacity} rows")
        if rows and not (slots.min() >= 0 and slots.max() < source.capacity):
            raise ProtocolError(f"copied slots must lie within [0, {source.capacity})")
        if self.states is not None and source.states is not None:
            self.states.copy(source.states, slots)
        moved = slots != np.arange(rows)
        in_place = int(moved.argmax()) if moved.any() else rows
        if not shared:
            self.store.copy(source.store, 0, slice(0, in_place))
        elif self.store.begin_as(source.store, in_place) < shared:
            raise PrefixLostError(f"the memory of {shared} rows cannot be shared here by another session")
        if in_place < rows:
            (index,) = to_device(self.store.device, slots[in_place:])
            self.store.copy(source.store, in_place, index)

    def gather(self, base: int, slots: Sequence[int] | npt.NDArray[np.integer[Any]]) -> None:
        """Move row slots[i] to row base + i, in all layers.

        Raises:
            ProtocolError: when the slots are not strictly ascending within [base, capacity).
        """
        wanted = np.asarray(slots, dtype=np.int64)
        if wanted.ndim != 1 or base < 0:
            raise ProtocolError(f"slots gathered to slot {base} are no flat list of slots from 0 up")
        if wanted.size and (wanted[0] < base or wanted[-1] >= self.capacity or (np.diff(wanted) <= 0).any()):
            raise ProtocolError(f"gathered slots must ascend within [{base}, {self.capacity})")
        if self.states is not None:
            self.states.gather(base, wanted)
        moved = wanted != np.arange(base, base + wanted.size)
        if not moved.any():
            return
        first = int(moved.argmax())
        (index,) = to_device(self.store.device, wanted[first:])
        self.store.move(base + first, index)


class CachedKeys:
    """The keys that the rows of one forward see in the cache of their session; see Attention."""

    def __init__(self, store: KeyValueStore, first: int, rows: int, seen: SeenKeys) -> None:
        """Store rows in the slots [first, first + rows), without the padding that may follow them."""
        self._store, self._first, self._rows, self.attend = store, first, rows, seen.attend

    def store_rows(self, layer: int, keys_values: torch.Tensor) -> None:
        """Store a layer's keys and values [2, kv_heads, rows or more, head_size]."""
        if keys_values.shape[2] != self._rows:
            keys_values = keys_values.narrow(2, 0, self._rows)
        self._store.write_both(layer, self._first, keys_values)
