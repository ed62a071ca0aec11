"""Ordered attention against torch's own, and the same bits for a row in any tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flowedge.models.attention import ordered as ordered_attention
from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.ordered import AttentionSizes, DevicePlan
from flowedge.models.attention.ordered_plan import CachedPaths, plan_keys
from flowedge.models.exact.self_test_attention import attention_sizes
from flowedge.models.host import copies
from tests.models.attention.test_ordered_plan import random_paths

HEADS, KV_HEADS, SIZE = 6, 2, 16


class Slots:
    def __init__(self, keys_values: torch.Tensor) -> None:
        self.keys_values = keys_values

    def read(self, layer: int, start: int, memory: torch.Tensor) -> torch.Tensor:
        stored = self.keys_values[:, :, start : start + memory.shape[2]]
        memory.zero_()[:, :, : stored.shape[2]] = stored
        return memory

    def take(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        return self.keys_values.index_select(2, slots)


def attend(
    slots: Slots, paths: CachedPaths, queries: torch.Tensor, sizes: AttentionSizes, window: int | None = None
) -> torch.Tensor:
    reading = DevicePlan.of(
        plan_keys(paths, window, sizes.group_rows), torch.device("cpu"), sizes.least_queries
    )
    return reading.attend(queries, slots, 0, KV_HEADS, Scoring(SIZE**-0.5))[0]


def sizes_here() -> AttentionSizes:
    sizes = attention_sizes(torch.device("cpu"), KV_HEADS, HEADS // KV_HEADS, SIZE)
    assert sizes is not None, "this machine's products add up in an order that depends on the rows"
    return sizes


@pytest.mark.parametrize("depth_bias", [0.2, 0.95])
@pytest.mark.parametrize("single", [False, True], ids=["groups", "single"])
def test_rows_of_trees_have_the_bits_of_their_paths_alone(depth_bias: float, single: bool) -> None:
    """Trees may be deeper than two blocks, so that heads have draft rows."""
    for window in (None, 40, 200):
        sizes = AttentionSizes(sizes_here().least_queries, 1 if single else None)
        rng = np.random.default_rng(3)
        generator = torch.Generator().manual_seed(3)
        for _ in range(6):
            paths, slots_of = random_paths(rng, depth_bias)
            slots = Slots(torch.randn((2, KV_HEADS, slots_of[-1][-1] + 1, SIZE), generator=generator))
            rows = len(slots_of)
            queries = torch.randn((1, HEADS, rows, SIZE), generator=generator)
            got = attend(slots, paths, queries, sizes, window)
            for row in range(0, rows, 1 + rows // 6):
                path = torch.tensor(slots_of[row])
                position = np.array([len(path) - 1])
                chain = Slots(slots.keys_values[:, :, path])
                own = CachedPaths(int(position[0]), position, np.array([[True]]), position)
                alone = attend(chain, own, queries[:, :, row : row + 1], sizes, window)
                assert torch.equal(got[:, row], alone[:, 0])
                low = 0 if window is None else max(0, len(path) - window)
                expected = scaled_dot_product_attention(
                    queries[:, :, row : row + 1], *chain.keys_values[:, None, :, low:], enable_gqa=True
                )
                torch.testing.assert_close(alone, expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 16])
def test_soft_caps_and_sinks_equal_their_definition(rows: int) -> None:
    generator, first = torch.Generator().manual_seed(6), 300
    positions = np.arange(first, first + rows)
    paths = CachedPaths(first, positions, np.tri(rows, dtype=np.bool_), positions)
    slots = Slots(torch.randn((2, KV_HEADS, first + rows, SIZE), generator=generator))
    queries = 5 * torch.randn((1, HEADS, rows, SIZE), generator=generator)
    plan = DevicePlan.of(plan_keys(paths), torch.device("cpu"), sizes_here().least_queries)
    sinks = 3 * torch.randn(HEADS, generator=generator)
    got = plan.attend(queries, slots, 0, KV_HEADS, Scoring(0.25, 2.0, sinks))
    mask = torch.from_numpy(np.tri(rows, first + rows, first, dtype=np.bool_))
    keys, values = slots.keys_values.repeat_interleave(HEADS // KV_HEADS, 1)[:, None]
    scores = torch.tanh(queries @ keys.transpose(2, 3) * 0.25 / 2) * 2
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(1, -1, rows, 1)), -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(got, weights @ values, atol=1e-5, rtol=1e-5)


def test_no_size_is_found_where_a_row_depends_on_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose sums change with the number of queries has no ordered attention."""
    real = torch.bmm

    def dependent(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return real(first, second) * (1 + first.shape[1] * 1e-6)

    monkeypatch.setattr(torch, "bmm", dependent)
    assert attention_sizes(torch.device("cpu"), 1, 1, 20) is None


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("group_rows", [None, 1])
def test_masks_that_a_gpu_expands_are_those_of_a_cpu(
    window: int | None, group_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The masks of a GPU arrive as one array of booleans; here it is expanded on the CPU."""
    generator, rng = torch.Generator().manual_seed(5), np.random.default_rng(5)
    uploads: list[list[str]] = []

    def to_device(_: torch.device, *arrays: Any) -> list[torch.Tensor]:
        uploads.append([str(array.dtype) for array in arrays])
        return copies.to_device("cpu", *arrays)

    for _ in range(4):
        paths, slots_of = random_paths(rng, 0.95)
        rows = len(slots_of)
        slots = Slots(torch.randn((2, KV_HEADS, slots_of[-1][-1] + 1, SIZE), generator=generator))
        queries = torch.randn((1, HEADS, rows, SIZE), generator=generator)
        plan = plan_keys(paths, window, group_rows)
        on_cpu = DevicePlan.of(plan, torch.device("cpu"), 16)
        with monkeypatch.context() as patch:
            patch.setattr(ordered_attention, "to_device", to_device)
            on_gpu = DevicePlan.of(plan, torch.device("cuda:0"), 16)
        got, expected = (each.attend(queries, slots, 0, KV_HEADS, Scoring(0.25)) for each in (on_gpu, on_cpu))
        assert torch.equal(got, expected)
    assert len(uploads) == 4, "a plan is one copy"
    assert all(dtypes == ["bool", *["int64"] * (len(dtypes) - 1)] for dtypes in uploads)
