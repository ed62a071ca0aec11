"""Times between and beyond the row counts that were measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping


def read_off(table: Mapping[int, float], rows: int, roofline: Callable[[int], float]) -> float:
    """The time of `rows` rows from a table of row counts and times, in the table's unit.

    Between two measured counts it is linear. Outside of them it has the shape of `roofline`, scaled to meet
    the nearest measured point. ValueError for an empty table.
    """
    if not table:
        raise ValueError("a table without a point has no times")
    counts = sorted(table)
    if rows in table:
        return table[rows]
    place = bisect_left(counts, rows)
    if place in (0, len(counts)):
        nearest = counts[min(place, len(counts) - 1)]
        return table[nearest] * roofline(rows) / roofline(nearest)
    below, above = counts[place - 1], counts[place]
    share = (rows - below) / (above - below)
    return table[below] + share * (table[above] - table[below])
