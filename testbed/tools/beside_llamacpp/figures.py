"""Measured figures, by table, line and column, and the turns in which they are measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Better: TypeAlias = Literal["more", "less"]


@dataclass(frozen=True)
class TableCell:
    """Where a figure stands."""

    table: str
    line: str
    column: str


Measured: TypeAlias = Sequence[tuple[TableCell, float]]
Turn: TypeAlias = Callable[[], Measured]
"""Measures some cells once or a few times, in some seconds."""


@dataclass
class Figures:
    """All values of each cell, in the order of their measurement."""

    values: dict[TableCell, list[float]] = field(default_factory=dict)

    def add(self, measured: Measured) -> None:
        for cell, value in measured:
            self.values.setdefault(cell, []).append(value)

    def best(self, cell: TableCell, better: Better) -> float | None:
        """Return the best value of a cell; None where nothing was measured."""
        values = self.values.get(cell)
        if not values:
            return None
        return max(values) if better == "more" else min(values)

    def median(self, cell: TableCell) -> float | None:
        """Return the median of a cell; None where nothing was measured."""
        values = self.values.get(cell)
        return statistics.median(values) if values else None

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"table": cell.table, "line": cell.line, "column": cell.column, "values": values}
            for cell, values in self.values.items()
        ]


def take_turns(
    turns: Sequence[Turn],
    repeats: int,
    deadline: float,
    figures: Figures,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure in turns, so that other work on the machine meets both sides alike.

    Args:
        repeats: rounds in which each turn is measured once.
        deadline: no round begins after this time of `clock`, except the first.

    Returns:
        The number of rounds.
    """
    done = 0
    while done < repeats and (not done or clock() < deadline):
        for turn in turns:
            figures.add(turn())
        done += 1
    return done
