"""The layers of a block as the kernels compute them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

import torch

from flowedge.models.attention.kv_store import Int8Store, KeyValueStore, PlainStore
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.kernels.layer import FREE_ROWS, KernelLayer, KernelNorm
from flowedge.models.kernels.rotation_table import Rotations, RotationTable
from flowedge.models.kernels.row_paths import RowPaths
from flowedge.models.kernels.run import KernelRows, KernelRun
from flowedge.models.kernels.structures import FORMATS, INT8, CacheFields, LayerFields
from flowedge.models.recurrent.updated_states import UpdatedStates
from flowedge.models.row_functions import RmsNorm

MOST_ROWS = 128  # of a call; a larger forward is computed in parts
# A call computes as many layers as read this many bytes of weights, at a few rows: some milliseconds, after
# which a forward may be aborted.
_CALL_BYTES = 64 << 20


class KernelBlock:
    """Consecutive layers whose rows have bits that depend on their own paths alone.

    That holds for any number of rows and threads, and for any division of a model into blocks.
    """

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        windows: Sequence[int | None],
        rotary: Rotations,
        dtype: torch.dtype,
        norm: RmsNorm | None,
    ) -> None:
        """Prepare the layers of a block; `norm` is the final norm of the last block.

        Raises:
            NoKernelError: when the kernels cannot compute a layer.
        """
        self._rotations = RotationTable(rotary, dtype)
        self._layers = [
            KernelLayer(layer, dtype, window, rotated)
            for layer, window, rotated in zip(layers, windows, self._rotations.rotated, strict=True)
        ]
        self._structures = (ctypes.POINTER(LayerFields) * len(layers))(
            *(ctypes.pointer(layer.structure) for layer in self._layers)
        )
        self._recurrent = [index for index, layer in enumerate(layers) if layer.is_recurrent]
        self._places = _places(layers)
        self._norm = None if norm is None else KernelNorm(norm)
        self._known: WeakKeyDictionary[KeyValueStore, ctypes.Array[CacheFields]] = WeakKeyDictionary()

    def forward(
        self,
        hidden: torch.Tensor,
        sessions: Sequence[KernelRows],
        should_abort: Callable[[], bool],
        taps: Sequence[int] = (),
        given: torch.Tensor | None = None,
        copies: Mapping[int, torch.Tensor] | None = None,
    ) -> torch.Tensor | None:
        """Compute rows [rows, hidden] in place, and store their keys and values.

        Args:
            sessions: the rows of each session, in the order of `hidden`, as `cached_rows` returns them.
            taps: indices of layers, ascending, whose inputs are appended to the rows of the result.
            given, copies: as of KernelRun; contiguous.

        Returns:
            [rows, hidden * (1 + taps)], or None after an abort.
        """
        run = KernelRun(self._structures, self._rotations, hidden, sessions, self._recurrent, given, copies)
        tapped = []
        for start, stop in self._pieces(len(hidden), taps):
            if should_abort():
                return None
            if start in taps:
                tapped.append(hidden.clone())
            run.compute(start, stop)
        if self._norm is not None:
            self._norm(hidden)
        return torch.cat((hidden, *tapped), dim=1) if tapped else hidden

    def _pieces(self, rows: int, taps: Sequence[int]) -> list[tuple[int, int]]:
        """Divide the layers into runs that are computed by a call; a tapped layer begins one."""
        most = _CALL_BYTES * FREE_ROWS // max(FREE_ROWS, rows)
        pieces, start, read = [], 0, 0
        for index, layer in enumerate(self._layers):
            if index > start and (index in taps or read + layer.weight_bytes > most):
                pieces.append((start, index))
                start, read = index, 0
            read += layer.weight_bytes
        return [*pieces, (start, len(self._layers))]

    def cached_rows(
        self, paths: RowPaths, slot: int, store: KeyValueStore, updated: UpdatedStates | None = None
    ) -> KernelRows:
        """A session's rows, which are stored from `slot` on; the caller keeps the store.

        updated: what the rows update in recurrent layers; None where there are none.
        """
        if store not in self._known:
            self._known[store] = _caches(store, self._places)
        return KernelRows(paths, slot, self._known[store], updated)


def _places(layers: Sequence[DecoderLayer]) -> list[int | None]:
    """The place of each layer's keys and values in a store of the block; None for a layer without attention.

    Every layer of a store is read by a layer of the block, so that places follow from the order.
    """
    read = sorted({layer.self_attn.cache_index for layer in layers if layer.attends})
    return [read.index(layer.self_attn.cache_index) if layer.attends else None for layer in layers]


def _caches(store: KeyValueStore, places: Sequence[int | None]) -> ctypes.Array[CacheFields]:
    """The keys and values of each layer that has a place in the store."""
    own = (CacheFields * len(places))()
    for layer, place in enumerate(places):
        if place is not None:
            own[layer] = _cache(*store.store_of(place))
    return own


def _cache(store: PlainStore | Int8Store, index: int) -> CacheFields:
    keys_values = store.kv
    by_layer, by_part = keys_values.stride()[:2]
    size, capacity = keys_values.itemsize, keys_values.shape[3]
    keys = keys_values.data_ptr() + index * by_layer * size
    values = keys + by_part * size
    if not isinstance(store, Int8Store):
        return CacheFields(FORMATS[keys_values.dtype], keys, values, None, None, capacity)
    per_part = keys_values.shape[2] * capacity * 4  # bytes of scales
    scales = store.scale.data_ptr() + 2 * index * per_part
    return CacheFields(INT8, keys, values, scales, scales + per_part, capacity)
