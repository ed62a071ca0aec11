"""Fixed plans give attention the bits of the plans they are made of, with arrays of the same sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.models.exact.ordered_attention import OrderedReading
from flowedge.models.exact.reading_plan import (
    BLOCK,
    CHUNK,
    TAIL_SLOTS,
    CachedPaths,
    ReadingPlan,
    plan_reading,
)
from flowedge.models.graphs.fixed_plan import fixed_plan
from flowedge.models.graphs.shapes import StaticShape
from flowedge.models.kv.store import NativeStore
from flowedge.models.kv.tail import tail_depths, visible_tail

SHAPE = StaticShape(16, 640)


def tree(context: int, seed: int) -> CachedPaths:
    """The last rows of a random tree of 40 rows."""
    rng = np.random.default_rng(seed)
    parents = np.array(
        [-1 if row == 0 else int(rng.choice([-1, *range(context, context + row)][-8:])) for row in range(40)]
    )
    depths = context + tail_depths(parents, context)
    return CachedPaths(context, depths, visible_tail(parents, context, 13), depths[-13:]).padded(SHAPE.rows)


def sizes(plan: ReadingPlan) -> list[object]:
    tails = [(tail.first, tail.stop, tail.slots.shape, tail.hidden.shape) for tail in plan.tails]
    chunks = [chunk for head in plan.heads for chunk in head.chunks]
    return [*tails, *((chunk.start, chunk.slots is None, chunk.hidden is None) for chunk in chunks)]


@pytest.mark.parametrize("window", [None, 100, 200])
@pytest.mark.parametrize("group_rows", [None, 1])
def test_bits_and_sizes(window: int | None, group_rows: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    store = NativeStore((1, 2, 2, SHAPE.columns + 1, 32), torch.float32, "cpu")
    store.kv.copy_(torch.randn(store.kv.shape, generator=generator))
    query = torch.randn((1, 4, SHAPE.rows, 32), generator=generator)
    found = []
    for seed, context in enumerate((3, 60, 127, 128, 200, 333, 449, 590)):
        plan = plan_reading(tree(context, seed), window, group_rows)
        fixed = fixed_plan(plan, SHAPE, window, group_rows)
        assert fixed is not None
        found.append(sizes(fixed))
        outputs = [
            OrderedReading.of(each, torch.device("cpu"), 16).attend(query, store, 0, 2, 0.2)
            for each in (plan, fixed)
        ]
        assert torch.equal(*outputs)
    assert all(each == found[0] for each in found)
    assert found[0][0] == (
        (0, 1, (2 * BLOCK,), (1, 2 * BLOCK)) if group_rows else (0, 16, (TAIL_SLOTS,), (16, TAIL_SLOTS))
    )
    chunks = SHAPE.columns // CHUNK if window is None else window // CHUNK + 2
    assert len(found[0]) == (16 if group_rows else 1) + chunks


def test_a_row_whose_head_is_in_draft_slots_has_no_fixed_plan() -> None:
    parents = np.array([-1, -1, *range(10, 10 + 2 * 148)])
    depths = 10 + tail_depths(parents, 10)
    paths = CachedPaths(10, depths, visible_tail(parents, 10, 16), depths[-16:])
    assert fixed_plan(plan_reading(paths), SHAPE, None, None) is None


def test_rows_with_too_many_slots_in_their_tails_have_no_fixed_plan() -> None:
    parents = np.array([-1] * 16 + [*range(120, 120 + 176)])  # 16 chains of 12 rows
    depths = 120 + tail_depths(parents, 120)
    paths = CachedPaths(120, depths, visible_tail(parents, 120, 16), depths[-16:])
    assert fixed_plan(plan_reading(paths), SHAPE, None, None) is None
    assert fixed_plan(plan_reading(paths, None, 1), SHAPE, None, 1) is not None
