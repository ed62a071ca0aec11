"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table whose first `left` columns are text and the others numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(header), rule, *map(list, rows)])


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def give_or_take(shown: str, half_width: float | None) -> str:
    """Return a shown figure with its half width, if it has one, such as "9.23 ±0.41"."""
    return shown if half_width is None or not shown else f"{shown} ±{half_width:.2f}"
