"""The sizes of static forwards."""

from __future__ import annotations

import itertools

import pytest

from flowedge.models.attention.ordered_plan import CHUNK
from flowedge.models.cuda_graphs.static_keys import StaticShape, choose_shape, static_rows, static_slots
from flowedge.models.row_counts import RowCounts


def test_numbers_of_rows_are_those_with_equal_bits() -> None:
    assert static_rows(None) == (1, 8, 16, 32, 64)
    assert static_rows(RowCounts((4, 16, 128))) == (4, 16, 128)
    assert static_rows(RowCounts((16,))) == (16,)


@pytest.mark.parametrize(
    ("rows", "stop", "shape"),
    [
        (1, 1, StaticShape(1, 256)),
        (2, 256, StaticShape(8, 256)),
        (8, 257, StaticShape(8, 512)),
        (9, 600, StaticShape(16, 640)),
        (64, 640, StaticShape(64, 640)),
        (65, 65, None),
        (1, 641, None),
    ],
)
def test_the_smallest_shape_is_chosen(rows: int, stop: int, shape: StaticShape | None) -> None:
    assert choose_shape((1, 8, 16, 32, 64), rows, stop, 640) == shape


def test_a_cache_of_other_origin_has_no_shape() -> None:
    assert choose_shape((1, 8), 1, 1, 0) is None


def test_caches_have_few_sizes_and_little_that_is_unused() -> None:
    for capacity in itertools.chain(range(1, 3000), (10_000, 65_537, 1 << 20)):
        slots = static_slots(capacity)
        assert slots >= capacity
        assert slots % CHUNK == 0
        assert slots <= max(256, capacity + CHUNK, capacity * 1.25)
    assert len({static_slots(capacity) for capacity in range(1, 4097)}) <= 20
