"""The self-test of ordered attention: the sizes with which a device gives its rows the same bits."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.ordered import AttentionSizes, DevicePlan
from flowedge.models.attention.ordered_plan import BLOCK, CachedPaths, plan_keys

_LENGTH = 3 * BLOCK + 40  # positions of the path that is read
_TAIL = 24  # rows of it that are draft rows in the tree
_LADDER = (1, 2, 4, 8, 16, 32, 64)
_ALONE = frozenset((0, 1, 63, 64, 127, 130, 191, *range(192, _LENGTH, 5), _LENGTH - 2, _LENGTH - 1))
_MOST_HEADS = 8  # key heads of the test; a product of more heads is the same product for each


def attention_sizes(device: torch.device, kv_heads: int, group: int, head_size: int) -> AttentionSizes | None:
    """Find the sizes by comparing rows in a tree with the same rows alone; None when no size works.

    Args:
        group: query heads of a key head.
    """
    return _found(device, torch.get_num_threads(), kv_heads, group, head_size)


@functools.cache
def _found(
    device: torch.device,
    threads: int,  # noqa: ARG001
    kv_heads: int,
    group: int,
    head_size: int,
) -> AttentionSizes | None:
    generator = torch.Generator().manual_seed(1)
    kv_heads = min(kv_heads, _MOST_HEADS)
    keys_values = torch.randn((2, kv_heads, _LENGTH, head_size), generator=generator)
    queries = torch.randn((1, kv_heads * group, _LENGTH, head_size), generator=generator).to(device)
    for group_rows in (None, 1):
        for least in _LADDER:
            sizes = AttentionSizes(least, group_rows)
            if _rows_are_equal(keys_values, queries, device, sizes):
                return sizes
    return None


@torch.inference_mode()
def _rows_are_equal(
    keys_values: torch.Tensor, queries: torch.Tensor, device: torch.device, sizes: AttentionSizes
) -> bool:
    """Whether rows of the path have the bits of the same rows alone, in all layouts of `_layouts`."""
    alone: dict[int, torch.Tensor] = {}
    for layout in _layouts():
        cached = _Random(keys_values, layout, device)
        output = _attend(cached, layout.paths, queries[:, :, layout.path_rows], sizes)
        for index, row in enumerate(layout.path_rows.tolist()):
            if row not in _ALONE:
                continue
            if row not in alone:
                single = _chain(row, row + 1)
                source = _Random(keys_values, single, device)
                alone[row] = _attend(source, single.paths, queries[:, :, [row]], sizes)[:, :, 0]
            if not torch.equal(output[:, :, index], alone[row]):
                return False
    return True


@dataclass(frozen=True, eq=False)
class _Layout:
    """Rows of the path that are computed together.

    Attributes:
        path_rows: int64 [rows], the rows' positions on the path.
        path_of_slot: int64 [slots], the position on the path of the row in each slot; -1 for other rows.
    """

    paths: CachedPaths
    path_rows: torch.Tensor
    path_of_slot: np.ndarray[tuple[int], np.dtype[np.int64]]


def _layouts() -> Iterator[_Layout]:
    yield _chain(0, _LENGTH)
    yield _chain(_LENGTH - 64, _LENGTH)
    for seed, rows in enumerate((2, 5, 16)):
        yield _tree(np.random.default_rng(seed), rows)


def _chain(first: int, stop: int) -> _Layout:
    """Consecutive rows after a context of `first` rows."""
    rows = stop - first
    seen = np.tri(rows, dtype=np.bool_)
    positions = np.arange(first, stop)
    paths = CachedPaths(first, positions, seen, positions)
    return _Layout(paths, torch.arange(first, stop), np.arange(stop))


def _tree(rng: np.random.Generator, rows: int) -> _Layout:
    """The last `rows` rows of the path as draft rows, with other rows at random between all draft rows."""
    context, others = _LENGTH - _TAIL, _TAIL
    slots = np.sort(rng.choice(_TAIL + others - 1, size=_TAIL - 1, replace=False))
    slots = np.append(slots, _TAIL + others - 1)
    path_of_slot = np.full(context + _TAIL + others, -1)
    path_of_slot[:context] = np.arange(context)
    path_of_slot[context + slots] = np.arange(context, _LENGTH)
    tail_positions = np.full(_TAIL + others, context)
    tail_positions[slots] = np.arange(context, _LENGTH)
    seen = np.zeros((rows, _TAIL + others), dtype=np.bool_)
    for index in range(rows):
        seen[index, slots[: _TAIL - rows + index + 1]] = True
    positions = np.arange(_LENGTH - rows, _LENGTH)
    paths = CachedPaths(context, tail_positions, seen, positions)
    return _Layout(paths, torch.from_numpy(positions), path_of_slot)


class _Random:
    """The keys and values of a layout's slots; slots of other rows have random keys and values."""

    def __init__(self, keys_values: torch.Tensor, layout: _Layout, device: torch.device) -> None:
        of_slot = torch.from_numpy(layout.path_of_slot)
        shape = (*keys_values.shape[:2], len(of_slot), keys_values.shape[3])
        slots = torch.randn(shape, generator=torch.Generator().manual_seed(len(of_slot)))
        slots[:, :, of_slot >= 0] = keys_values[:, :, of_slot[of_slot >= 0]]
        self._slots = slots.to(device)

    @property
    def kv_heads(self) -> int:
        return self._slots.shape[1]

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        stored = self._slots[:, :, start : start + memory.shape[2]]
        memory.zero_()[:, :, : stored.shape[2]] = stored
        return memory

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return self._slots.index_select(2, slots)


def _attend(
    cached: _Random, paths: CachedPaths, queries: torch.Tensor, sizes: AttentionSizes
) -> torch.Tensor:
    plan = plan_keys(paths, group_rows=sizes.group_rows)
    on_device = DevicePlan.of(plan, queries.device, sizes.least_queries)
    return on_device.attend(queries, cached, 0, cached.kv_heads, Scoring(queries.shape[3] ** -0.5))
