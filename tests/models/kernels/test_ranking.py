"""The kernels find the likeliest columns that torch finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.ranking import likeliest
from tests.models.conftest import threads_of_torch

pytestmark = pytest.mark.skipif(bool(missing_reason()), reason=missing_reason() or "there are kernels")


def some_logits(rows: int, columns: int) -> torch.Tensor:
    return 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns))


@pytest.mark.parametrize("columns", [1, 5, 16, 63, 64, 65, 700, 4096])
def test_columns_and_log_probabilities_are_those_of_torch(columns: int) -> None:
    logits = some_logits(9, columns)
    for most in (1, 5, 16):
        found, logs = likeliest(logits, min(most, columns))
        expected = torch.topk(torch.log_softmax(logits.double(), dim=-1), min(most, columns), dim=-1)
        assert found.tolist() == expected.indices.tolist()
        np.testing.assert_allclose(logs, expected.values.numpy(), atol=1e-5)


def test_each_row_has_its_own_noise() -> None:
    logits, noises = some_logits(4, 300), some_logits(4, 301)[:, :300].contiguous()
    found, logs = likeliest(logits, 7, list(noises), factor=0.7, scale=0.8)
    values = (logits.double() + 0.7 * noises.double()) / 0.8
    expected = torch.topk(torch.log_softmax(values, dim=-1), 7, dim=-1)
    assert found.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(logs, expected.values.numpy(), atol=1e-5)


def test_the_lowest_of_equal_columns_comes_first() -> None:
    logits = torch.zeros(1, 200)
    logits[0, [150, 70, 199]] = 1.0
    assert likeliest(logits, 5)[0].tolist() == [[70, 150, 199, 0, 1]]


def test_a_row_that_is_not_finite_has_no_probabilities() -> None:
    for column, value in itertools.product((0, 40, 99), (torch.nan, torch.inf)):
        logits = some_logits(3, 100)
        logits[1, column] = value
        _, logs = likeliest(logits, 4)
        assert np.isfinite(logs[[0, 2]]).all()
        assert np.isnan(logs[1]).all(), (column, value)


def test_an_impossible_column_is_never_likely() -> None:
    logits = torch.full((1, 100), -torch.inf)
    logits[0, [3, 90]] = 0.0
    found, logs = likeliest(logits, 3)
    assert found[0, :2].tolist() == [3, 90]
    np.testing.assert_allclose(logs[0, :2], np.log(0.5), atol=1e-6)
    assert logs[0, 2] == -np.inf


def test_threads_share_the_rows() -> None:
    logits = some_logits(33, 500)
    alone = likeliest(logits, 8)
    with threads_of_torch(2):
        shared = likeliest(logits, 8)
    for one, two in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, two)
