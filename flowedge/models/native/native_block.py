"""The layers of a block as the kernels compute them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flowedge.models.kv.store import Int8Store, KeyValueStore
from flowedge.models.lean.lean_layer import LeanLayer
from flowedge.models.native.mixture import NativeMixture
from flowedge.models.native.native_layer import ATTENTION, MLP, NativeLayer
from flowedge.models.native.native_norm import NativeNorm
from flowedge.models.native.paths import RowPaths
from flowedge.models.native.rotation_table import Rotations, RotationTable
from flowedge.models.products.structures import FORMATS, INT8, CacheFields, LayerFields, RunFields
from flowedge.native.library import library

MOST_ROWS = 128  # of a call; a larger forward is computed in parts
# A call computes as many layers as read this many bytes of weights, at a few rows: some milliseconds, after
# which a forward may be aborted.
_CALL_BYTES = 64 << 20
_FREE_ROWS = 4  # rows that take about as long as one


class NativeBlock:
    """Consecutive layers whose rows have bits that depend on their own paths alone.

    That holds for any number of rows and threads, and for any division of a model into blocks.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        windows: Sequence[int | None],
        rotary: Rotations,
        dtype: torch.dtype,
        norm: nn.Module | None,
    ) -> None:
        """Prepare the layers of a block; `norm` is the final norm of the last block.

        Raises:
            NotNativeError: when the kernels cannot compute a layer.
        """
        self._rotations = RotationTable(rotary, dtype)
        self._native = [
            NativeLayer(layer, dtype, window, rotated)
            for layer, window, rotated in zip(layers, windows, self._rotations.rotated, strict=True)
        ]
        self._mixtures = {
            index: NativeMixture(layer)
            for index, layer in enumerate(layers)
            if isinstance(layer, LeanLayer) and layer.form.experts
        }
        self._structures = (ctypes.POINTER(LayerFields) * len(layers))(
            *(ctypes.pointer(layer.structure) for layer in self._native)
        )
        form = cast(LeanLayer, layers[0]).form
        self._norm = None if norm is None else NativeNorm(norm, form)
        self._known: WeakKeyDictionary[KeyValueStore, ctypes.Array[CacheFields]] = WeakKeyDictionary()

    def forward(
        self,
        hidden: torch.Tensor,
        paths: RowPaths,
        store: KeyValueStore,
        slot: int,
        should_abort: Callable[[], bool],
        taps: Sequence[int] = (),
    ) -> torch.Tensor | None:
        """Compute rows [rows, hidden] in place, and store their keys and values from `slot` on.

        Args:
            taps: indices of layers, ascending, whose inputs are appended to the rows of the result.

        Returns:
            [rows, hidden * (1 + taps)], or None after an abort.
        """
        call = _Call(self, hidden, paths, store, slot)
        tapped = []
        for start, stop in self._pieces(len(hidden), taps):
            if should_abort():
                return None
            if start in taps:
                tapped.append(hidden.clone())
            if start in self._mixtures:
                call.compute(start, stop, ATTENTION)
                self._mixtures[start].add_to(hidden)
            else:
                call.compute(start, stop, ATTENTION | MLP)
        if self._norm is not None:
            self._norm(hidden)
        return torch.cat((hidden, *tapped), dim=1) if tapped else hidden

    def _pieces(self, rows: int, taps: Sequence[int]) -> list[tuple[int, int]]:
        """Divide the layers into runs that are computed by a call; a tapped layer and a mixture begin one."""
        most = _CALL_BYTES * _FREE_ROWS // max(_FREE_ROWS, rows)
        pieces, start, read = [], 0, 0
        for index, layer in enumerate(self._native):
            apart = index in taps or index in self._mixtures or index - 1 in self._mixtures
            if index > start and (apart or read + layer.weight_bytes > most):
                pieces.append((start, index))
                start, read = index, 0
            read += layer.weight_bytes
        return [*pieces, (start, len(self._native))]

    def caches(self, store: KeyValueStore) -> ctypes.Array[CacheFields]:
        """A session's keys and values in each layer."""
        if store not in self._known:
            self._known[store] = _caches(store, len(self._native))
        return self._known[store]


class _Call:
    """The arguments of the calls of a forward."""

    def __init__(
        self, block: NativeBlock, hidden: torch.Tensor, paths: RowPaths, store: KeyValueStore, slot: int
    ) -> None:
        count = len(block._native)
        self._structures = block._structures
        rotations = block._rotations.upto(int(paths.positions.max()))
        self._kept = (hidden, paths, store, rotations)
        self._cosines, self._sines = (
            (ctypes.c_void_p * count)(*(rotation[part].data_ptr() for rotation in rotations))
            for part in (0, 1)
        )
        self._caches = block.caches(store)
        self._run = new_run(hidden, paths, slot)

    def compute(self, start: int, stop: int, halves: int) -> None:
        self._run.halves = halves
        library().flowedge_layers(
            ctypes.byref(self._structures, start * ctypes.sizeof(ctypes.c_void_p)),
            ctypes.byref(self._caches, start * ctypes.sizeof(CacheFields)),
            ctypes.byref(self._cosines, start * ctypes.sizeof(ctypes.c_void_p)),
            ctypes.byref(self._sines, start * ctypes.sizeof(ctypes.c_void_p)),
            ctypes.c_int64(stop - start),
            ctypes.byref(self._run),
            torch.get_num_threads(),
        )


def new_run(hidden: torch.Tensor, paths: RowPaths, slot: int) -> RunFields:
    """Make the arguments of a call for rows [rows, hidden], the first of which is stored in `slot`.

    They refer to the memory of `hidden` and `paths`.
    """
    return RunFields(
        rows=len(hidden),
        hidden=hidden.data_ptr(),
        slot=slot,
        positions=paths.positions.ctypes.data,
        linear=paths.linear.ctypes.data,
        offsets=paths.offsets.ctypes.data,
        slots=paths.slots.ctypes.data,
    )


def _caches(store: KeyValueStore, layers: int) -> ctypes.Array[CacheFields]:
    """The keys and values of each layer."""
    keys_values = store.kv
    base, (by_layer, by_part) = keys_values.data_ptr(), keys_values.stride()[:2]
    size, capacity = keys_values.itemsize, keys_values.shape[3]
    is_int8 = isinstance(store, Int8Store)
    kind = INT8 if is_int8 else FORMATS[keys_values.dtype]
    scales = store.scale.data_ptr() if isinstance(store, Int8Store) else 0
    own = (CacheFields * layers)()
    per_part = keys_values.shape[2] * capacity * 4  # bytes of scales
    for layer in range(layers):
        keys = base + layer * by_layer * size
        at = scales + 2 * layer * per_part if is_int8 else None
        own[layer] = CacheFields(
            kind, keys, keys + by_part * size, at, at + per_part if at else None, capacity
        )
    return own
