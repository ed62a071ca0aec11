"""The default of the exact option."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flowedge.models.exact.default import ExactOption, resolve_exact
from tests.support.kernels import without_kernels


@pytest.mark.parametrize(
    ("option", "hidden", "device", "exact"),
    [
        ("auto", 4096, "cpu", True),
        ("auto", 256, "cpu", False),
        ("auto", 4096, "cuda", False),
        (True, 256, "cuda", True),
        (False, 4096, "cpu", False),
    ],
)
def test_only_auto_depends_on_model_and_device(
    option: ExactOption, hidden: int, device: str, exact: bool
) -> None:
    with without_kernels():
        assert resolve_exact(option, SimpleNamespace(hidden_size=hidden), device) is exact


def test_the_kernels_are_exact_for_every_width() -> None:
    assert resolve_exact("auto", SimpleNamespace(hidden_size=64), "cpu")
    assert not resolve_exact("auto", SimpleNamespace(hidden_size=64), "cuda")
