"""Pages of cache rows, by which sessions count where memory is taken as rows are written."""

from __future__ import annotations

PAGE_ROWS = 64  # one or two pages of memory for a head of 64 values


def in_pages(rows: int, capacity: int) -> int:
    """Return the rows of the pages that so many rows lie in; at most the capacity of their session."""
    return min(-(-rows // PAGE_ROWS) * PAGE_ROWS, capacity)
