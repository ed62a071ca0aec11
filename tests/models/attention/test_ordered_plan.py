"""The plan of each row's keys against the row's path, for random trees, windows and depths."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.models.attention.ordered_plan import (
    BLOCK,
    CHUNK,
    RECENT_SLOTS,
    CachedPaths,
    KeyPlan,
    plan_keys,
)


def random_paths(rng: np.random.Generator, depth_bias: float) -> tuple[CachedPaths, list[list[int]]]:
    """A random tree after a context, and the path of slots of each computed row."""
    context, tail = int(rng.integers(0, 400)), int(rng.integers(1, 160))
    parents = [-1]
    for row in range(1, tail):
        deep = rng.random() < depth_bias
        parents.append(row - 1 if deep else int(rng.integers(-1, row)))
    paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else range(context)), context + row])
    positions = np.array([len(path) - 1 for path in paths])
    rows = int(rng.integers(1, tail + 1))
    seen = np.zeros((rows, tail), dtype=np.bool_)
    for index, path in enumerate(paths[-rows:]):
        seen[index, [slot - context for slot in path if slot >= context]] = True
    return CachedPaths(context, positions, seen, positions[-rows:]), paths[-rows:]


def slots_read(plan: KeyPlan, row: int) -> tuple[list[int], list[int]]:
    """The slots of a row's old and recent keys, in the order in which they are read."""
    old: list[int] = []
    for group in plan.old:
        rows = list(range(plan.rows)) if group.rows is None else group.rows.tolist()
        if row not in rows:
            continue
        for chunk in group.chunks:
            slots = np.arange(chunk.start, chunk.start + CHUNK) if chunk.slots is None else chunk.slots
            read = slice(None) if chunk.hidden is None else ~chunk.hidden[rows.index(row)]
            old += slots[read].tolist()
    (recent,) = [group for group in plan.recent if group.first <= row < group.stop]
    return old, recent.slots[~recent.hidden[row - recent.first]].tolist()


@pytest.mark.parametrize("group_rows", [None, 1])
@pytest.mark.parametrize("depth_bias", [0.0, 0.9, 1.0], ids=["bushy", "deep", "chain"])
def test_each_row_reads_its_path_in_the_order_of_positions(group_rows: int | None, depth_bias: float) -> None:
    for window in (None, 1, 8, 70, 150):
        rng = np.random.default_rng(7)
        for _ in range(12):
            paths, slots = random_paths(rng, depth_bias)
            plan = plan_keys(paths, window, group_rows)
            assert all(len(group.slots) <= RECENT_SLOTS for group in plan.recent)
            assert group_rows is None or {len(group.slots) for group in plan.recent} == {2 * BLOCK}
            assert all(chunk.start % CHUNK == 0 for group in plan.old for chunk in group.chunks)
            for row, path in enumerate(slots):
                position = len(path) - 1
                border = BLOCK * max(0, position // BLOCK - 1)
                low = 0 if window is None else max(0, position - window + 1)
                assert slots_read(plan, row) == (path[low:border], path[max(low, border) :])


def test_padding_repeats_the_last_row() -> None:
    paths, _ = random_paths(np.random.default_rng(1), 0.5)
    padded = paths.padded(len(paths.positions) + 3)
    assert (padded.positions[-4:] == paths.positions[-1]).all()
    assert (padded.seen[-4:] == paths.seen[-1]).all()


def test_a_shallow_tree_reads_old_keys_in_place_and_recent_keys_together() -> None:
    context, rows = 1000, 16
    seen = np.eye(rows, dtype=np.bool_)
    positions = np.full(rows, context)
    plan = plan_keys(CachedPaths(context, positions, seen, positions))
    assert len(plan.recent) == 1
    (old,) = plan.old
    assert old.rows is None and all(chunk.slots is None for chunk in old.chunks)
    # Only the chunk with the border has a mask.
    assert [chunk.hidden is None for chunk in old.chunks] == [True] * (896 // CHUNK)
