"""The cache's gather against plain numpy, and its views."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, ProtocolError
from flowedge.models.layers.cache import SessionCache

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


def test_layers_with_a_window_read_the_rows_that_it_reaches() -> None:
    cache = SessionCache(CONFIG, 2, 100, windows=[None, 4])
    cache.begin(70, 2)
    full, windowed = cache.prepare(70, np.array([-1, -1]), np.array([70, 70]))
    keys = torch.ones(1, 2, 2, 4)
    assert full.shape[-1] == cache.update(keys, keys, 0)[0].shape[2] == 72
    assert windowed.shape[-1] == cache.update(keys, keys, 1)[0].shape[2] == 8
