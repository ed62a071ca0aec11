"""Timings that take turns, so that other work of the machine meets all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Repeatable(Protocol):
    """Work that can be timed again and again."""

    def seconds(self) -> float:
        """Do the work, and return its time."""


def shortest_ms(timed: Sequence[Repeatable], repeats: int) -> list[float]:
    """Return the shortest of `repeats` times of each work, in ms."""
    shortest = [float("inf")] * len(timed)
    for _ in range(repeats):
        for index, each in enumerate(timed):
            shortest[index] = min(shortest[index], each.seconds())
    return [seconds * 1e3 for seconds in shortest]
