"""How the attention of a session's rows finds the keys and values that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.exact.ordered_attention import OrderedReading
from flowedge.models.exact.reading_plan import CachedPaths, plan_reading
from flowedge.models.kv.mask import AttentionMask, MaskRows, write_masks
from flowedge.models.kv.store import KeyValueStore
from flowedge.models.kv.tail import tail_depths, visible_tail

Windows = Sequence[int | None]  # of each layer, in positions


class CacheReader(Protocol):
    """Prepares the reading of a session's cache for each forward."""

    @property
    def nbytes(self) -> int:
        """The bytes of buffers that are held between forwards."""

    def prepare(
        self,
        context: int,
        tail_parents: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: int,
    ) -> list[Any]:
        """What each layer's attention function is given as its mask, for the last rows of the cache.

        Args:
            tail_parents: int64 [tail], as in `visible_tail`; positions: int64 [rows that are cached].
            rows: rows that are computed; those after the cached rows are padding.
        """

    def keys_values(
        self, layer: int, stop: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a layer's attention function is given, after new keys and values were stored before `stop`."""

    def views(self, layer: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer's attention with a mask reads, up to slot `stop`."""


class MaskedReader:
    """Gives attention views of all cached rows, and a mask."""

    def __init__(
        self, store: KeyValueStore, windows: Windows, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._store = store
        self._windows = windows
        capacity = store.kv.shape[3]
        self._masks = {window: AttentionMask(capacity, dtype, device) for window in set(windows)}
        self._lows = [0] * len(windows)  # the first slot that each layer reads

    @property
    def nbytes(self) -> int:
        return sum(mask.nbytes for mask in self._masks.values())

    def prepare(
        self,
        context: int,
        tail_parents: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: int,
    ) -> list[Any]:
        if rows != positions.size:
            raise ValueError("attention with a mask takes no rows of padding")
        seen = visible_tail(tail_parents, context, positions.size)
        own = []
        for window in self._masks:
            if window is None:
                own.append(MaskRows(context, seen))
                continue
            first_seen = positions - (window - 1)
            tail_positions = context + tail_depths(tail_parents, context)
            own.append(MaskRows(context, seen & (tail_positions >= first_seen[:, None]), first_seen))
        written = dict(zip(self._masks, write_masks([*self._masks.values()], own), strict=True))
        stop = context + tail_parents.size
        self._lows = [stop - written[window].shape[-1] for window in self._windows]
        return [written[window] for window in self._windows]

    def keys_values(
        self,
        layer: int,
        stop: int,
        keys: torch.Tensor,  # noqa: ARG002
        values: torch.Tensor,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.views(layer, stop)

    def views(self, layer: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._store.view(layer, self._lows[layer], stop)


class OrderedReader:
    """Gives attention the plan by which it reads each row's keys in the order of their positions."""

    def __init__(self, store: KeyValueStore, windows: Windows, sizes: AttentionSizes) -> None:
        self._store = store
        self._windows = windows
        self._sizes = sizes

    @property
    def nbytes(self) -> int:
        return 0

    def prepare(
        self,
        context: int,
        tail_parents: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: int,
    ) -> list[Any]:
        tail_positions = context + tail_depths(tail_parents, context)
        seen = visible_tail(tail_parents, context, positions.size)
        paths = CachedPaths(context, tail_positions, seen, positions).padded(rows)
        readings = {window: self._reading(paths, window) for window in set(self._windows)}
        return [(readings[window], self._store) for window in self._windows]

    def _reading(self, paths: CachedPaths, window: int | None) -> OrderedReading:
        plan = plan_reading(paths, window, self._sizes.group_rows)
        return OrderedReading.of(plan, self._store.kv.device, self._sizes.least_queries)

    def keys_values(
        self,
        layer: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def views(self, layer: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise TypeError(f"ordered attention reads layer {layer} up to slot {stop} without views")
