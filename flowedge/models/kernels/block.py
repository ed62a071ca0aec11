"""The layers of a block as the kernels compute them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch

from flowedge.models.attention.kv_store import Int8Store, KeyValueStore
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
        self._attending = [index for index, layer in enumerate(layers) if layer.attends]
        self._norm = None if norm is None else KernelNorm(norm)
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
        run = KernelRun(self._structures, self._rotations, hidden, sessions, self._recurrent)
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
            self._known[store] = _caches(store, len(self._layers), self._attending)
        return KernelRows(paths, slot, self._known[store], updated)


def _caches(store: KeyValueStore, layers: int, attending: Sequence[int]) -> ctypes.Array[CacheFields]:
    """The keys and values of the layers with the indices `attending`."""
    keys_values = store.kv
    base, (by_layer, by_part) = keys_values.data_ptr(), keys_values.stride()[:2]
    size, capacity = keys_values.itemsize, keys_values.shape[3]
    is_int8 = isinstance(store, Int8Store)
    kind = INT8 if is_int8 else FORMATS[keys_values.dtype]
    scales = store.scale.data_ptr() if isinstance(store, Int8Store) else 0
    own = (CacheFields * layers)()
    per_part = keys_values.shape[2] * capacity * 4  # bytes of scales
    for stored, layer in enumerate(attending):
        keys = base + stored * by_layer * size
        at = scales + 2 * stored * per_part if is_int8 else None
        own[layer] = CacheFields(
            kind, keys, keys + by_part * size, at, at + per_part if at else None, capacity
        )
    return own
