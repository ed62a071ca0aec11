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
from flowedge.models.native.kernel_run import KernelRows, KernelRun
from flowedge.models.native.mixture import NativeMixture
from flowedge.models.native.native_layer import ATTENTION, MLP, NativeLayer
from flowedge.models.native.native_norm import NativeNorm
from flowedge.models.native.paths import RowPaths
from flowedge.models.native.rotation_table import Rotations, RotationTable
from flowedge.models.products.structures import FORMATS, INT8, CacheFields, LayerFields

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
        sessions: Sequence[KernelRows],
        should_abort: Callable[[], bool],
        taps: Sequence[int] = (),
    ) -> torch.Tensor | None:
        """Compute rows [rows, hidden] in place, and store their keys and values.

        Args:
            sessions: the rows of each session, in the order of `hidden`, as `cached_rows` returns them.
            taps: indices of layers, ascending, whose inputs are appended to the rows of the result.

        Returns:
            [rows, hidden * (1 + taps)], or None after an abort.
        """
        run = KernelRun(self._structures, self._rotations, hidden, sessions)
        tapped = []
        for start, stop in self._pieces(len(hidden), taps):
            if should_abort():
                return None
            if start in taps:
                tapped.append(hidden.clone())
            if start in self._mixtures:
                run.compute(start, stop, ATTENTION)
                self._mixtures[start].add_to(hidden)
            else:
                run.compute(start, stop, ATTENTION | MLP)
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

    def cached_rows(self, paths: RowPaths, slot: int, store: KeyValueStore) -> KernelRows:
        """A session's rows, which are stored from `slot` on; the caller keeps the store."""
        if store not in self._known:
            self._known[store] = _caches(store, len(self._native))
        return KernelRows(paths, slot, self._known[store])


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
