"""The search for a constant."""

from __future__ import annotations

import pytest

from flowedge.core.errors import BadRequestError
from testbed.tools.calibrate import EAGLE2_ACCEPTANCE, solve, target_cycle


def test_solve_finds_the_constant() -> None:
    assert solve(lambda c: 0.2 + 0.3 / c, 0.65, 0.5, 0.8) == pytest.approx(0.3 / 0.45)
    # Not quite linear in 1/c: a floor below which the constant does not matter.
    assert solve(lambda c: max(0.1, 0.3 / c) + 0.1, 0.4, 0.5, 0.8) == pytest.approx(1, rel=1e-3)


def test_what_no_constant_reaches_is_said() -> None:
    with pytest.raises(BadRequestError, match="too slow"):
        solve(lambda c: 1 + 1 / c, 0.5, 1, 2)


def test_targets_come_from_the_papers_table() -> None:
    assert target_cycle("llama2-7b") == (7.05, EAGLE2_ACCEPTANCE / 7.05)
    with pytest.raises(BadRequestError):
        target_cycle("gpt")
