"""The cache's gather and the mask buffer against plain numpy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.mask import AttentionMask
from flowedge.models.layers.tail import tail_depths, visible_tail

CONFIG = SimpleNamespace(num_key_value_heads=2, head_dim=4, hidden_size=16, num_attention_heads=4)


def filled(capacity: int = 40) -> SessionCache:
    cache = SessionCache(CONFIG, 3, capacity, torch.float32, "cpu")
    cache.kv.copy_(torch.randn(cache.kv.shape, generator=torch.Generator().manual_seed(1)))
    return cache


@pytest.mark.parametrize(
    ("base", "slots"),
    [
        (10, []),
        (10, [10, 11, 12]),
        (10, [10, 12, 13, 15, 20]),
        (10, list(range(11, 40))),
        (0, [39]),
        (39, [39]),
        (5, [5, 6, 9]),
    ],
)
def test_gather_moves_rows(base: int, slots: list[int]) -> None:
    cache = filled()
    expected = cache.kv.numpy().copy()
    expected[:, :, :, base : base + len(slots)] = expected[:, :, :, slots].copy()
    buffer = cache.kv.data_ptr()
    cache.gather(base, slots)
    np.testing.assert_array_equal(cache.kv.numpy(), expected)
    assert cache.kv.data_ptr() == buffer


@pytest.mark.parametrize("slots", [[9], [11, 11], [12, 11], [40], [[11]]])
def test_gather_refuses_other_lists(slots: list[int]) -> None:
    cache = filled()
    before = cache.kv.clone()
    with pytest.raises(ProtocolError):
        cache.gather(10, slots)
    assert torch.equal(cache.kv, before)


def test_rows_beyond_the_capacity_are_refused() -> None:
    cache = filled()
    cache.begin(39, 1)
    with pytest.raises(CapacityError, match=r"\[39, 41\) do not fit .* 40 rows"):
        cache.begin(39, 2)
    with pytest.raises(CapacityError):
        SessionCache(CONFIG, 3, 0)


def test_bytes() -> None:
    cache = filled()
    assert SessionCache.bytes_per_row(CONFIG, 3, torch.float16) == 3 * 2 * 2 * 4 * 2
    assert cache.nbytes == 40 * SessionCache.bytes_per_row(CONFIG, 3, torch.float32)
    cache.begin(0, 1)
    cache.prepare(0, np.array([-1]), np.array([0]))
    assert cache.nbytes > 40 * SessionCache.bytes_per_row(CONFIG, 3, torch.float32)


def test_update_returns_views_of_the_buffer() -> None:
    cache = filled()
    cache.begin(7, 2)
    keys, values = torch.ones(1, 2, 2, 4), torch.full((1, 2, 2, 4), 2.0)
    all_keys, all_values = cache.update(keys, values, 1)
    assert all_keys.shape == all_values.shape == (1, 2, 9, 4)
    assert all_keys.data_ptr() == cache.kv[1, 0].data_ptr()
    assert all_values.data_ptr() == cache.kv[1, 1].data_ptr()
    assert torch.equal(all_keys[:, :, 7:], keys) and torch.equal(all_values[:, :, 7:], values)


def test_visible_tail_is_the_row_and_its_ancestors() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        tail = int(rng.integers(1, 30))
        context = int(rng.integers(0, 50))
        local = [int(rng.integers(-1, i)) if i else -1 for i in range(tail)]
        if rng.random() < 0.2:
            local = list(range(-1, tail - 1))
        parents = np.array([p if p == -1 else p + context for p in local], dtype=np.int64)
        rows = int(rng.integers(1, tail + 1))
        expected = np.zeros((tail, tail), dtype=np.bool_)
        for row in range(tail):
            node = row
            while node != -1:
                expected[row, node] = True
                node = local[node]
        np.testing.assert_array_equal(visible_tail(parents, context, rows), expected[tail - rows :])


def test_a_tail_of_a_single_row_sees_itself() -> None:
    assert visible_tail(np.array([-1], dtype=np.int64), 0, 1).tolist() == [[True]]


def test_the_mask_buffer_is_reused_and_right_after_any_history() -> None:
    rng = np.random.default_rng(3)
    mask = AttentionMask(300, torch.float32, "cpu")
    context, pointers = 0, set()
    for step in range(120):
        context = min(context + int(rng.integers(0, 4)), 250)
        tail = int(rng.integers(1, 40))
        rows = int(rng.integers(1, tail + 1)) if step != 60 else tail
        seen = rng.random((rows, tail)) < 0.5
        view = mask.write(context, seen)
        assert view.shape == (1, 1, rows, context + tail)
        assert (view[0, 0, :, :context] == 0).all()
        expected = np.where(seen, np.float32(0), np.float32(torch.finfo(torch.float32).min))
        np.testing.assert_array_equal(view[0, 0, :, context:].numpy(), expected)
        pointers.add(view.data_ptr())
    assert len(pointers) <= 4  # it grows with the largest segment, then stays


def test_a_window_hides_the_context_before_it_after_any_history() -> None:
    rng = np.random.default_rng(4)
    mask = AttentionMask(300, torch.float32, "cpu")
    fill = np.float32(torch.finfo(torch.float32).min)
    context = 0
    for _ in range(200):
        context = min(context + int(rng.integers(0, 5)), 250)
        tail = int(rng.integers(1, 40))
        rows = int(rng.integers(1, tail + 1))
        seen = rng.random((rows, tail)) < 0.5
        first_seen = context + rng.integers(-60, 10, rows)
        view = mask.write(context, seen, first_seen)[0, 0].numpy()
        low = context + tail - view.shape[1]
        assert max(0, first_seen.min() - 16) < low + 1 <= max(0, first_seen.min()) + 1
        expected = np.where(np.arange(low, context) >= first_seen[:, None], np.float32(0), fill)
        np.testing.assert_array_equal(view[:, : context - low], expected)
        np.testing.assert_array_equal(view[:, context - low :], np.where(seen, np.float32(0), fill))


def test_layers_with_a_window_read_the_rows_that_it_reaches() -> None:
    cache = SessionCache(CONFIG, 2, 100, windows=[None, 4])
    cache.begin(70, 2)
    full, windowed = cache.prepare(70, np.array([-1, -1]), np.array([70, 70]))
    keys = torch.ones(1, 2, 2, 4)
    assert full.shape[-1] == cache.update(keys, keys, 0)[0].shape[2] == 72
    assert windowed.shape[-1] == cache.update(keys, keys, 1)[0].shape[2] == 8


def test_tail_depths_count_from_the_context() -> None:
    parents = np.array([-1, 30, 30, 32, -1, 31, 35])
    assert tail_depths(parents, 30).tolist() == [0, 1, 1, 2, 0, 2, 3]
    assert tail_depths(np.array([-1, 30, 31]), 30).tolist() == [0, 1, 2]
    assert tail_depths(np.array([], dtype=np.int64), 30).tolist() == []


def test_only_the_columns_that_can_have_changed_are_written() -> None:
    mask = AttentionMask(100, torch.float32, "cpu")
    view = mask.write(50, np.ones((2, 4), dtype=np.bool_))
    view[..., :50] = 7.0  # would be overwritten if the context were masked again
    view = mask.write(52, np.ones((2, 4), dtype=np.bool_))
    assert (view[..., :50] == 7.0).all()
    assert (view[..., 50:] == 0.0).all()
