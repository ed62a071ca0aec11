"""The cache's gather against plain numpy, and what is stored and seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.core.errors import CapacityError, PrefixLostError, ProtocolError
from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.kv_store import KvFormat, kv_row_bytes, saved_rows
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.families.parts import KeyHeads
from flowedge.models.host import shared_pages

HEADS = KeyHeads(2, 4)


def filled(capacity: int = 40) -> KVCache:
    cache = KVCache([HEADS] * 3, capacity, torch.float32, "cpu")
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
    cache.check_capacity(39, 1)
    with pytest.raises(CapacityError, match=r"\[39, 41\) do not fit .* 40 rows"):
        cache.seen_keys(39, 39, np.array([-1, 39]), np.array([39, 40]), 2)
    with pytest.raises(CapacityError):
        KVCache([HEADS] * 3, 0)


def test_bytes() -> None:
    cache = filled()
    assert kv_row_bytes([HEADS] * 3, torch.float16) == 3 * 2 * 2 * 4 * 2
    assert cache.nbytes == 40 * kv_row_bytes([HEADS] * 3, torch.float32)
    cache.seen_keys(0, 0, np.array([-1]), np.array([0]), 1)
    assert cache.nbytes > 40 * kv_row_bytes([HEADS] * 3, torch.float32)


def test_rows_are_stored_and_padding_is_not() -> None:
    cache = filled()
    before = cache.kv.clone()
    seen = cache.seen_keys(7, 7, np.array([-1, 7]), np.array([7, 8]), 2)
    rows = torch.randn(2, 2, 3, 4)
    seen.store_rows(1, rows)
    assert torch.equal(cache.kv[1, :, :, 7:9], rows[:, :, :2])
    before[1, :, :, 7:9] = rows[:, :, :2]
    assert torch.equal(cache.kv, before)


@pytest.mark.parametrize("layer", [0, 1])
def test_layers_with_a_window_attend_to_the_rows_that_it_reaches(layer: int) -> None:
    """The values are 1 within the window and 2 before it."""
    cache = KVCache([HEADS] * 2, 100, windows=[None, 4])
    cache.kv[:, 1, :, :67], cache.kv[:, 1, :, 67:] = 2, 1
    seen = cache.seen_keys(70, 70, np.array([-1]), np.array([70]), 1)
    attended = seen.attend(layer, torch.zeros(1, 4, 1, 4), 2, Scoring(1.0))
    expected = 1.0 if layer else (67 * 2 + 4) / 71
    torch.testing.assert_close(attended, torch.full((1, 4, 1, 4), expected))


@pytest.mark.parametrize(
    ("heads", "dtype", "kv"),
    [
        ([KeyHeads(8, 64)] * 3, torch.float32, "native"),
        ([KeyHeads(8, 64)] * 3, torch.bfloat16, "int8"),
        ([KeyHeads(8, 64), KeyHeads(4, 80), KeyHeads(8, 64)], torch.bfloat16, "native"),
    ],
)
def test_rows_in_pages_of_another_cache_are_those_that_a_copy_has(
    heads: list[KeyHeads], dtype: torch.dtype, kv: KvFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new(capacity: int) -> KVCache:
        return KVCache(heads, capacity, dtype, ordered=AttentionSizes(1, None), kv=kv)

    def rows_of(cache: KVCache, rows: int = 400) -> list[torch.Tensor]:
        return [cache.store.take(layer, torch.arange(rows)) for layer in range(len(heads))]

    source, random = new(900), torch.Generator().manual_seed(1)
    for layer, own in enumerate(heads):
        values = torch.randn((2, own.count, 500, own.size), generator=random).to(dtype)
        source.store.write_both(layer, 0, values)
    before = rows_of(source, 500)
    slots = np.append(np.arange(290), [295, 297, 300])
    shared, copied = new(700), new(700)
    shared.copy(source, slots, 256)
    copied.copy(source, slots)
    for base, moved in ((293, []), (100, list(range(103, 200, 3)))):  # the second one writes to shared pages
        shared.gather(base, moved)
        copied.gather(base, moved)
        assert all(map(torch.equal, rows_of(shared), rows_of(copied)))
        assert all(map(torch.equal, rows_of(source, 500), before))
    del source
    assert all(map(torch.equal, rows_of(shared), rows_of(copied)))
    monkeypatch.setattr(shared_pages, "_most_maps", lambda: 0)
    new(700).copy(shared, slots)
    with pytest.raises(PrefixLostError, match="of 256 rows cannot be shared"):
        new(700).copy(shared, slots, 256)


def test_a_shared_page_saves_less_where_scales_are_copied() -> None:
    assert saved_rows(KeyHeads(8, 64), 64, torch.float32) == 64
    assert saved_rows(KeyHeads(8, 64), 64, torch.bfloat16, "int8") == 60
    assert saved_rows(KeyHeads(8, 80), 64, torch.bfloat16) == 0, "they are two pages and a half"
