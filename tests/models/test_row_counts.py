"""Padding and division of rows to allowed numbers of rows."""

from __future__ import annotations

import pytest
import torch

from flowedge.models.row_counts import ANY_COUNT, RowCounts, pad_rows


@pytest.mark.parametrize(
    ("rows", "products"), [(1, [4]), (4, [4]), (5, [16]), (16, [16]), (17, [16, 4]), (37, [16, 16, 16])]
)
def test_functions_see_allowed_numbers_of_rows(rows: int, products: list[int]) -> None:
    seen: list[int] = []

    def double(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(len(inputs))
        return inputs * 2

    inputs = torch.arange(rows * 3.0).view(rows, 3)
    assert torch.equal(RowCounts((4, 16)).apply(double, inputs), inputs * 2)
    assert seen == products


def test_any_number_of_rows_is_one_product() -> None:
    inputs = torch.ones(300, 2)
    assert ANY_COUNT.apply(lambda rows: rows.sum(0, keepdim=True), inputs).tolist() == [[300.0, 300.0]]
    assert list(ANY_COUNT.parts(300)) == [(0, 300)]


def test_common_numbers() -> None:
    assert RowCounts((1, 4, 8)).common(RowCounts((4, 8, 16))) == RowCounts((4, 8))
    assert RowCounts((1, 2)).common(RowCounts((4,))) is None


def test_padding_repeats_the_last_row() -> None:
    assert pad_rows(torch.tensor([1, 2]), 4).tolist() == [1, 2, 2, 2]
    assert pad_rows(torch.tensor([[1, 2]]), 1).tolist() == [[1, 2]]
