"""The self-test of products finds a dependence on the number of rows and on their place."""

from __future__ import annotations

import torch
from torch import nn

from flowedge.models.exact.self_test_products import function_counts, product_counts
from flowedge.models.row_counts import RowCounts

INPUTS = torch.randn((64, 8), generator=torch.Generator().manual_seed(0))
TESTED = (1, 2, 4, 8, 16, 32)


def test_independent_rows_agree_for_all_numbers() -> None:
    assert function_counts(lambda rows: rows * 3, INPUTS, TESTED, 64) == RowCounts(TESTED)


def test_another_kernel_for_few_rows_is_found() -> None:
    def kernel(rows: torch.Tensor) -> torch.Tensor:
        return rows * 3 if len(rows) >= 4 else rows * 3 + 1e-6

    assert function_counts(kernel, INPUTS, TESTED, 64) == RowCounts((4, 8, 16, 32))


def test_a_rare_difference_is_found_among_many_rows() -> None:
    def kernel(rows: torch.Tensor) -> torch.Tensor:
        changed = rows * 3
        if len(rows) == 1 and torch.equal(rows[0], INPUTS[41]):
            changed[0, 0] += 1
        return changed

    assert function_counts(kernel, INPUTS, TESTED, 64) == RowCounts(TESTED[1:])
    assert function_counts(kernel, INPUTS, TESTED, 16) == RowCounts(TESTED)  # that row is not computed


def test_a_dependence_on_the_place_is_found() -> None:
    def kernel(rows: torch.Tensor) -> torch.Tensor:
        return rows * 3 + torch.arange(len(rows))[:, None] * 1e-6

    assert function_counts(kernel, INPUTS, (2, 4, 8), 64) is None


def test_linear_layers_of_this_device() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(96, 64, dtype=dtype).requires_grad_(False)
        counts = product_counts([layer, nn.LayerNorm(4)], dtype, torch.device("cpu"))
        assert counts is not None and counts.most >= 16
        rows = torch.randn(counts.most, 96).to(dtype)
        with torch.inference_mode():
            expected = layer(rows)
            for count in (1, 3, 7, 16):
                assert torch.equal(counts.apply(layer, rows[-count:]), expected[-count:])
