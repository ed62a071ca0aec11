"""What rows of a static forward see, in tensors of fixed sizes that are refilled for each forward."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import numpy as np
import torch

from flowedge.core.arrays import IntArray
from flowedge.models.attention.attention import SeenKeys
from flowedge.models.attention.kv_store import KeyValueStore
from flowedge.models.attention.masked import MaskedKeys
from flowedge.models.attention.ordered import AttentionSizes, DevicePlan, OrderedKeys
from flowedge.models.attention.ordered_plan import (
    BLOCK,
    CHUNK,
    RECENT_SLOTS,
    Bools,
    CachedPaths,
    KeyPlan,
    OldChunk,
    OldKeys,
    RecentKeys,
    plan_keys,
)
from flowedge.models.host.copies import HostArray
from flowedge.models.row_counts import RowCounts

_ROWS = (1, 8, 16, 32, 64)
_LEAST_SLOTS = 256
SCRATCH_SHARE = 1.25  # most slots of a cache for a row of its session


@dataclass(frozen=True)
class StaticShape:
    """The sizes of the tensors of a static forward.

    Attributes:
        rows: rows that are computed, padding included.
        columns: slots of the cache that attention reads, from slot 0 on.
    """

    rows: int
    columns: int

    def padded(self, array: HostArray) -> HostArray:
        """Repeat the last row of an array [n, ...] until there are `rows` rows."""
        missing = self.rows - len(array)
        padded: HostArray = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), "edge")
        return padded

    def slots(self, first: int, stop: int, scratch: int) -> IntArray:
        """Return int64 [rows]: the slots [first, stop), then the scratch slot for rows of padding."""
        return np.pad(np.arange(first, stop), (0, self.rows - (stop - first)), constant_values=scratch)


def static_rows(allowed: RowCounts | None) -> tuple[int, ...]:
    """Return the numbers of rows, ascending, that forwards are padded to.

    Args:
        allowed: the numbers of rows for which a row has the same bits; None when a row's bits may differ.
    """
    if allowed is None:
        return _ROWS
    return tuple(sorted({allowed.padded(rows) for rows in _ROWS if rows <= allowed.most}))


def choose_shape(counts: Sequence[int], rows: int, stop: int, slots: int) -> StaticShape | None:
    """Choose the smallest shape for `rows` rows; None when they are too many.

    Args:
        counts: the numbers of rows that forwards are padded to, ascending.
        stop: the slot behind the last row; slots: the slots of the cache, a result of `static_slots`.
    """
    index = bisect_left(counts, rows)
    if index == len(counts) or stop > slots:
        return None
    columns = _LEAST_SLOTS
    while columns < stop:
        columns *= 2
    return StaticShape(counts[index], min(columns, slots))


def static_slots(capacity: int) -> int:
    """The slots of a cache of `capacity` rows: at most a quarter more, or 127 more, or 256 in all.

    Few different numbers of slots let sessions reuse the caches of ended sessions.
    """
    step = max(CHUNK, 1 << max(0, capacity.bit_length() - 3))
    return max(_LEAST_SLOTS, -(-capacity // step) * step)


def row_bytes_with_scratch(row_bytes: int) -> int:
    """Return the most bytes of a cache for each row of its session, where a row itself takes `row_bytes`.

    Every sum of memory takes the figure from here: before a model is loaded, and afterwards. It holds for
    capacities from 512 on; smaller caches take at most 127 rows more than their capacity, or 256 rows in all.
    """
    return int(row_bytes * SCRATCH_SHARE)


def fixed_plan(
    plan: KeyPlan, shape: StaticShape, window: int | None, group_rows: int | None
) -> KeyPlan | None:
    """Return a plan that reads the same keys in the same order; None when the fixed sizes do not suffice.

    Tails are padded to RECENT_SLOTS slots, or to the 2 * BLOCK slots of a single row. There is one group of
    heads, with the chunks of all columns or of a window. Padding is hidden from every row, and so changes no
    bit of a result.

    Args:
        plan: a plan of `shape.rows` rows; window, group_rows: those that the plan was made with.
    """
    groups = shape.rows if group_rows == 1 else 1
    if len(plan.recent) != groups or len(plan.old) > 1 or group_rows not in (None, 1):
        return None
    chunks = _fixed_chunks(plan, shape, window)
    if chunks is None:
        return None
    width = 2 * BLOCK if group_rows == 1 else RECENT_SLOTS
    return KeyPlan(plan.rows, [_padded(tail, width) for tail in plan.recent], [OldKeys(None, chunks)])


def _padded(tail: RecentKeys, width: int) -> RecentKeys:
    own = len(tail.slots)
    slots = np.zeros(width, dtype=np.int64)
    slots[:own] = tail.slots
    hidden = np.ones((len(tail.hidden), width), dtype=np.bool_)
    hidden[:, :own] = tail.hidden
    return RecentKeys(tail.first, tail.stop, slots, hidden)


def _fixed_chunks(plan: KeyPlan, shape: StaticShape, window: int | None) -> list[OldChunk] | None:
    head = plan.old[0] if plan.old else OldKeys(None, [])
    if any(chunk.slots is not None for chunk in head.chunks):
        return None
    if window is None or window + 2 * CHUNK >= shape.columns:
        return _same_buffer(plan.rows, head, shape)
    return _indexed(plan.rows, head, window // CHUNK + 2)


def _same_buffer(rows: int, head: OldKeys, shape: StaticShape) -> list[OldChunk] | None:
    """Every chunk of the columns."""
    by_start = {chunk.start: chunk for chunk in head.chunks}
    starts = range(0, shape.columns, CHUNK)
    if not by_start.keys() <= {*starts}:
        return None
    return [OldChunk(start, None, _hidden(rows, head, by_start.get(start))) for start in starts]


def _indexed(rows: int, head: OldKeys, count: int) -> list[OldChunk] | None:
    """Chunks of which each has an index of its slots, so that their places may change."""
    if len(head.chunks) > count:
        return None
    chunks: Sequence[OldChunk | None] = [*head.chunks, *[None] * (count - len(head.chunks))]
    return [
        OldChunk(
            0,
            np.arange(CHUNK) + (0 if chunk is None else chunk.start),
            _hidden(rows, head, chunk),
        )
        for chunk in chunks
    ]


def _hidden(rows: int, head: OldKeys, chunk: OldChunk | None) -> Bools:
    """What is hidden [rows, CHUNK] of a chunk from all rows of the plan."""
    hidden = np.ones((rows, CHUNK), dtype=np.bool_)
    if chunk is not None:
        index = slice(None) if head.rows is None else head.rows
        hidden[index] = False if chunk.hidden is None else chunk.hidden
    return hidden


MOST_DRAFTS = 512  # rows of a draft tail that masks of static forwards hold

Windows = Sequence[int | None]  # of each layer, in positions


class StaticKeyPlan(Protocol):
    """What attention reads in the forwards of a shape."""

    def plan(self, paths: CachedPaths) -> Any | None:
        """Return what `load` takes; None when the paths do not fit the shape. No tensor is touched."""

    def arrays(self, plan: Any) -> list[HostArray]:
        """The arrays of a plan, of the same sizes for every plan, that are copied to the device."""

    def load(self, plan: Any) -> None:
        """Refill the tensors that `arrays` does not fill."""

    def seen_keys(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> SeenKeys:
        """Compute on the device what the rows see.

        Args:
            arrays: the arrays of the plan, on the device; positions: int64 [rows].
        """


class StaticMaskedKeys:
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
        return paths if len(paths.tail_positions) <= MOST_DRAFTS else None

    def arrays(self, plan: CachedPaths) -> list[HostArray]:
        """The context [1], and for each kind of window who sees whom in the tail, [rows, MOST_DRAFTS]."""
        tail = len(plan.tail_positions)
        seen = np.zeros((len(self._kinds), self._shape.rows, MOST_DRAFTS), dtype=np.bool_)
        for own, window in zip(seen, self._kinds, strict=True):
            own[:, :tail] = plan.seen
            if window is not None:
                own[:, :tail] &= plan.tail_positions > plan.positions[:, None] - window
        return [np.array([plan.context]), seen]

    def load(self, plan: CachedPaths) -> None:
        pass

    def seen_keys(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> MaskedKeys:
        context, seen = arrays
        place = self._columns - context
        index = place.clamp(0, MOST_DRAFTS - 1)
        in_tail = (place >= 0) & (place < MOST_DRAFTS)
        fill = torch.finfo(self._dtype).min
        written: dict[int | None, torch.Tensor] = {}
        for own, window in zip(seen, self._kinds, strict=True):
            visible = (place < 0)[None]
            if window is not None:
                visible = visible & (self._columns > positions[:, None] - window)
            visible = visible | (own.index_select(1, index) & in_tail)
            mask = torch.zeros(visible.shape, dtype=self._dtype, device=visible.device)
            written[window] = mask.masked_fill_(visible.logical_not(), fill)[None, None]
        masks = [written[window] for window in self._windows]
        return MaskedKeys(self._store, self._shape.columns, masks)


class StaticOrderedKeys:
    """Gives attention the fixed plans by which rows read their keys in the order of positions."""

    def __init__(
        self, store: KeyValueStore, windows: Windows, shape: StaticShape, sizes: AttentionSizes
    ) -> None:
        self._store = store
        self._windows = windows
        self._shape = shape
        self._sizes = sizes
        self._plans: dict[int | None, DevicePlan] = {}

    def plan(self, paths: CachedPaths) -> dict[int | None, DevicePlan] | None:
        device, sizes = self._store.kv.device, self._sizes
        plans = {}
        for window in set(self._windows):
            own = plan_keys(paths, window, sizes.group_rows)
            fixed = fixed_plan(own, self._shape, window, sizes.group_rows)
            if fixed is None:
                return None
            plans[window] = fixed
        return {kind: DevicePlan.of(plan, device, sizes.least_queries) for kind, plan in plans.items()}

    def arrays(self, plan: dict[int | None, DevicePlan]) -> list[HostArray]:  # noqa: ARG002
        return []

    def load(self, plan: dict[int | None, DevicePlan]) -> None:
        if not self._plans:
            self._plans = plan
            return
        for window, held in self._plans.items():
            torch._foreach_copy_([*_tensors(held)], [*_tensors(plan[window])])

    def seen_keys(self, arrays: Sequence[torch.Tensor], positions: torch.Tensor) -> OrderedKeys:  # noqa: ARG002
        return OrderedKeys(self._store, [self._plans[window] for window in self._windows])


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
