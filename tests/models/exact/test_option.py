"""The default of the exact option."""

from __future__ import annotations

import pytest

from flowedge.models.exact.option import ExactOption, resolve_exact
from tests.support.kernels import without_kernels


@pytest.mark.parametrize(
    ("option", "device", "exact"),
    [("auto", "cpu", False), ("auto", "cuda", False), (True, "cuda", True), (False, "cpu", False)],
)
def test_without_kernels_only_the_option_decides(option: ExactOption, device: str, exact: bool) -> None:
    with without_kernels():
        assert resolve_exact(option, device) is exact


def test_the_kernels_are_exact() -> None:
    assert resolve_exact("auto", "cpu")
    assert not resolve_exact("auto", "cuda")
