"""Layers over stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError
from flowedge.planning.split import (
    check_split,
    even_split,
    layer_ranges,
    split_beside_head,
    split_counts,
)


@given(st.integers(1, 200), st.integers(1, 64))
def test_an_even_split_covers_all_layers_and_differs_by_one_at_most(layers: int, stages: int) -> None:
    if layers < stages:
        with pytest.raises(BadRequestError, match=f"use at most {layers}"):
            even_split(layers, stages)
        return
    counts = even_split(layers, stages)
    assert len(counts) == stages
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def test_what_is_left_over_goes_to_the_middle_first() -> None:
    assert even_split(8, 3) == [3, 3, 2]
    assert even_split(10, 4) == [2, 3, 3, 2]
    assert even_split(7, 1) == [7]
    assert even_split(32, 5, larger_first=True) == [7, 7, 6, 6, 6]


def test_a_split_is_read_and_made_ranges_of() -> None:
    counts = check_split(split_counts(" 2,3, 3"), 8, 3)
    assert counts == [2, 3, 3]
    assert layer_ranges(counts) == [(0, 2), (2, 5), (5, 8)]


REFUSED: list[tuple[str, str]] = [
    ("2,3", "for 2 stages, but there are 3"),
    ("2,3,4", "adds up to 9 layers, but the model has 8"),
    ("0,4,4", "without a layer"),
    ("2;3;3", "such as 2,3,3"),
    ("-2,5,5", "such as 2,3,3"),
    ("", "such as 2,3,3"),
    ("²,3,3", "such as 2,3,3"),
]


def test_a_split_that_does_not_add_up_is_refused() -> None:
    for text, complaint in REFUSED:
        with pytest.raises(BadRequestError, match=complaint):
            check_split(split_counts(text), 8, 3)


def test_a_split_can_be_read_without_knowing_the_model() -> None:
    assert split_counts("10,11") == [10, 11]
    assert check_split([5, 3], None, None) == [5, 3]
    with pytest.raises(BadRequestError, match="without a layer"):
        check_split([8, 0], None, None)


def test_no_stages_are_no_pipeline() -> None:
    with pytest.raises(BadRequestError, match="at least one"):
        even_split(8, 0)


@pytest.mark.parametrize(
    ("layers", "stages", "head_layers", "last"),
    [(32, 4, 0.0, 8), (32, 4, 8.6, 2), (16, 4, 4.3, 1), (8, 4, 100.0, 1), (32, 2, 4.0, 14), (4, 4, 0.0, 1)],
)
def test_a_last_stage_has_fewer_layers_beside_the_head(
    layers: int, stages: int, head_layers: float, last: int
) -> None:
    split = split_beside_head(layers, stages, head_layers, surely=True)
    assert split[-1] == last and sum(split) == layers


def test_where_the_head_may_lie_elsewhere_the_slowest_stage_has_to_gain_much() -> None:
    assert split_beside_head(8, 2, 1.3, surely=False) == [4, 4]  # 5.3 times a layer, not 5
    assert split_beside_head(18, 2, 15.0, surely=False) == [16, 2]  # 24 times a layer, not 17
    assert split_beside_head(18, 1, 15.0, surely=False) == [18]
