"""Fixed plans give attention the bits of the plans they are made of, with arrays of the same sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.draft_rows import draft_depths, visible_drafts
from flowedge.models.attention.kv_store import PlainStore
from flowedge.models.attention.ordered import DevicePlan
from flowedge.models.attention.ordered_plan import (
    BLOCK,
    CHUNK,
    RECENT_SLOTS,
    CachedPaths,
    KeyPlan,
    plan_keys,
)
from flowedge.models.cuda_graphs.static_keys import StaticShape, fixed_plan

SHAPE = StaticShape(16, 640)


def tree(context: int, seed: int) -> CachedPaths:
    """The last rows of a random tree of 40 rows."""
    rng = np.random.default_rng(seed)
    parents = np.array(
        [-1 if row == 0 else int(rng.choice([-1, *range(context, context + row)][-8:])) for row in range(40)]
    )
    depths = context + draft_depths(parents, context)
    return CachedPaths(context, depths, visible_drafts(parents, context, 13), depths[-13:]).padded(SHAPE.rows)


def sizes(plan: KeyPlan) -> list[object]:
    tails = [(tail.first, tail.stop, tail.slots.shape, tail.hidden.shape) for tail in plan.recent]
    chunks = [chunk for head in plan.old for chunk in head.chunks]
    return [*tails, *((chunk.start, chunk.slots is None, chunk.hidden is None) for chunk in chunks)]


@pytest.mark.parametrize("window", [None, 100, 200])
@pytest.mark.parametrize("group_rows", [None, 1])
def test_bits_and_sizes(window: int | None, group_rows: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    store = PlainStore((1, 2, 2, SHAPE.columns + 1, 32), torch.float32, "cpu")
    store.kv.copy_(torch.randn(store.kv.shape, generator=generator))
    query = torch.randn((1, 4, SHAPE.rows, 32), generator=generator)
    found = []
    for seed, context in enumerate((3, 60, 127, 128, 200, 333, 449, 590)):
        plan = plan_keys(tree(context, seed), window, group_rows)
        fixed = fixed_plan(plan, SHAPE, window, group_rows)
        assert fixed is not None
        found.append(sizes(fixed))
        outputs = [
            DevicePlan.of(each, torch.device("cpu"), 16).attend(query, store, 0, 2, Scoring(0.2))
            for each in (plan, fixed)
        ]
        assert torch.equal(*outputs)
    assert all(each == found[0] for each in found)
    assert found[0][0] == (
        (0, 1, (2 * BLOCK,), (1, 2 * BLOCK)) if group_rows else (0, 16, (RECENT_SLOTS,), (16, RECENT_SLOTS))
    )
    chunks = SHAPE.columns // CHUNK if window is None else window // CHUNK + 2
    assert len(found[0]) == (16 if group_rows else 1) + chunks


def test_a_row_whose_head_is_in_draft_slots_has_no_fixed_plan() -> None:
    parents = np.array([-1, -1, *range(10, 10 + 2 * 148)])
    depths = 10 + draft_depths(parents, 10)
    paths = CachedPaths(10, depths, visible_drafts(parents, 10, 16), depths[-16:])
    assert fixed_plan(plan_keys(paths), SHAPE, None, None) is None


def test_rows_with_too_many_slots_in_their_tails_have_no_fixed_plan() -> None:
    parents = np.array([-1] * 16 + [*range(120, 120 + 176)])  # 16 chains of 12 rows
    depths = 120 + draft_depths(parents, 120)
    paths = CachedPaths(120, depths, visible_drafts(parents, 120, 16), depths[-16:])
    assert fixed_plan(plan_keys(paths), SHAPE, None, None) is None
    assert fixed_plan(plan_keys(paths, None, 1), SHAPE, None, 1) is not None
