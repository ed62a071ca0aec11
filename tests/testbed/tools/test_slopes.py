"""The slope by which memory is judged, on series that were made: a leak is told from a plateau."""

from __future__ import annotations

import random

import pytest

from testbed.tools.slopes import Sample, slope

SECONDS = 120


def series(*, leak: float = 0.0, step: float = 0.0, swing: float = 0.0, seed: int = 0) -> list[Sample]:
    """Return what a process holds each second: it leaks, takes memory once, and takes and frees some."""
    chance = random.Random(seed)
    return [
        (second, 500 + leak * second + step * (second > SECONDS / 3) + chance.random() * swing)
        for second in range(SECONDS)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_told_from_a_plateau(seed: int) -> None:
    """The leak adds 24 MiB in the time, and what is taken and freed beside it goes up and down by 50."""
    leak, plateau = slope(series(leak=0.2, swing=50, seed=seed)), slope(series(swing=50, seed=seed))
    assert abs(leak - 0.2) < 0.1
    assert abs(plateau) < 0.1


def test_a_step_is_no_slope() -> None:
    assert slope(series(step=1_000)) == 0.0


def test_places_without_a_distance_say_nothing() -> None:
    assert slope([(1, 5), (1, 500), (2, 7), (3, 9)]) == 2.0
