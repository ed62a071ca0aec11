"""How the attention of a static forward finds its keys: tensors that stay, and are refilled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import numpy as np
import torch

from flowedge.models.copies import HostArray
from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.exact.ordered_attention import OrderedReading
from flowedge.models.exact.reading_plan import CachedPaths, plan_reading
from flowedge.models.graphs.fixed_plan import fixed_plan
from flowedge.models.graphs.shapes import StaticShape
from flowedge.models.kv.store import KeyValueStore

MOST_TAIL = 512  # rows of a draft tail that masks of static forwards have room for

Windows = Sequence[int | None]  # of each layer, in positions


class StaticReading(Protocol):
    """What attention reads in the forwards of a shape."""

    def plan(self, paths: CachedPaths) -> Any | None:
        """Return what `load` takes; None when the paths do not fit the shape. No tensor is touched."""

    def arrays(self, plan: Any) -> list[HostArray]:
        """The arrays of a plan, of the same sizes for every plan, that are copied to the device."""

    def load(self, plan: Any) -> None:
        """Refill the tensors that `arrays` does not fill."""

    def masks(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> list[Any]:
        """Compute each layer's `attention_mask` on the device.

        Args:
            arrays: the arrays of the plan, on the device; positions: int64 [rows].
        """

    def keys_values(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What a layer's attention function is given, after new keys and values were stored."""

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that a layer's attention with a mask reads."""


class MaskedStaticReading:
    """Gives attention views of the first columns of a cache, and masks that are made on the device."""

    def __init__(
        self, store: KeyValueStore, windows: Windows, shape: StaticShape, dtype: torch.dtype
    ) -> None:
        self._store = store
        self._windows = windows
        self._kinds = list(dict.fromkeys(windows))
        self._shape = shape
        self._dtype = dtype
        self._columns = torch.arange(shape.columns, device=store.kv.device)

    def plan(self, paths: CachedPaths) -> CachedPaths | None:
        return paths if len(paths.tail_positions) <= MOST_TAIL else None

    def arrays(self, plan: CachedPaths) -> list[HostArray]:
        """The context [1], and for each kind of window who sees whom in the tail, [rows, MOST_TAIL]."""
        tail = len(plan.tail_positions)
        seen = np.zeros((len(self._kinds), self._shape.rows, MOST_TAIL), dtype=np.bool_)
        for own, window in zip(seen, self._kinds, strict=True):
            own[:, :tail] = plan.seen
            if window is not None:
                own[:, :tail] &= plan.tail_positions > plan.positions[:, None] - window
        return [np.array([plan.context]), seen]

    def load(self, plan: CachedPaths) -> None:
        pass

    def masks(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> list[Any]:
        context, seen = arrays
        place = self._columns - context
        index = place.clamp(0, MOST_TAIL - 1)
        in_tail = (place >= 0) & (place < MOST_TAIL)
        fill = torch.finfo(self._dtype).min
        written: dict[int | None, torch.Tensor] = {}
        for own, window in zip(seen, self._kinds, strict=True):
            visible = (place < 0)[None]
            if window is not None:
                visible = visible & (self._columns > positions[:, None] - window)
            visible = visible | (own.index_select(1, index) & in_tail)
            mask = torch.zeros(visible.shape, dtype=self._dtype, device=visible.device)
            written[window] = mask.masked_fill_(visible.logical_not(), fill)[None, None]
        return [written[window] for window in self._windows]

    def keys_values(
        self,
        layer: int,
        keys: torch.Tensor,  # noqa: ARG002
        values: torch.Tensor,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.views(layer)

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._store.view(layer, 0, self._shape.columns)


class OrderedStaticReading:
    """Gives attention the fixed plans by which rows read their keys in the order of positions."""

    def __init__(
        self, store: KeyValueStore, windows: Windows, shape: StaticShape, sizes: AttentionSizes
    ) -> None:
        self._store = store
        self._windows = windows
        self._shape = shape
        self._sizes = sizes
        self._readings: dict[int | None, OrderedReading] = {}

    def plan(self, paths: CachedPaths) -> dict[int | None, OrderedReading] | None:
        device, sizes = self._store.kv.device, self._sizes
        plans = {}
        for window in set(self._windows):
            own = plan_reading(paths, window, sizes.group_rows)
            fixed = fixed_plan(own, self._shape, window, sizes.group_rows)
            if fixed is None:
                return None
            plans[window] = fixed
        return {kind: OrderedReading.of(plan, device, sizes.least_queries) for kind, plan in plans.items()}

    def arrays(self, plan: dict[int | None, OrderedReading]) -> list[HostArray]:  # noqa: ARG002
        return []

    def load(self, plan: dict[int | None, OrderedReading]) -> None:
        if not self._readings:
            self._readings = plan
            return
        for window, reading in self._readings.items():
            torch._foreach_copy_([*_tensors(reading)], [*_tensors(plan[window])])

    def masks(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> list[Any]:  # noqa: ARG002
        return [(self._readings[window], self._store) for window in self._windows]

    def keys_values(
        self,
        layer: int,  # noqa: ARG002
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise TypeError(f"ordered attention reads layer {layer} without views")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in the public fields of a dataclass, and in lists and dataclasses in them, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            if field.name.startswith("_"):  # memory for intermediates
                continue
            yield from _tensors(getattr(value, field.name))
