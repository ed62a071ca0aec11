"""The rows that sessions count by: pages where memory is taken as rows are written, else whole caches."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from flowedge.core.arrays import IntArray

PAGE_ROWS = 64  # one or two pages of memory for a head of 64 values
_LEAST_CACHE = 512  # rows
_NONE: IntArray = np.zeros(0, dtype=np.int64)


def in_pages(rows: int, capacity: int) -> int:
    """Return the rows of the pages that so many rows lie in; at most the capacity of their session."""
    return min(-(-rows // PAGE_ROWS) * PAGE_ROWS, capacity)


def cache_rows(rows: int, capacity: int) -> int:
    """Return the rows of a cache that takes its memory at once, for so many rows; at most `capacity`.

    There are few sizes, so that a cache of an ended session, with the CUDA graphs over it, serves the next.
    """
    return min(max(_LEAST_CACHE, 1 << (rows - 1).bit_length()), capacity)


class SharedPages:
    """The pages that sessions have in common, those of a common prefix, so that each counts once.

    A page is there until the last of its sessions is forgotten, whichever of them has written it.
    """

    def __init__(self) -> None:
        self._pages: dict[str, IntArray] = {}  # numbers of pages, the session's first ones, by session
        self._numbered = 0

    @property
    def sessions(self) -> int:
        """The sessions that have pages in common, or had."""
        return len(self._pages)

    def __contains__(self, session: str) -> bool:
        return session in self._pages

    def share(self, session: str, source: str, pages: int) -> None:
        """Have the first pages of a session be those of another one; it had no others in common."""
        known = self._pages.get(source, _NONE)
        more = max(pages - len(known), 0)
        self._pages[source] = np.append(known, np.arange(self._numbered, self._numbered + more))
        self._numbered += more
        self._pages[session] = self._pages[source][:pages]

    def forget(self, session: str) -> None:
        """Have a session hold no pages any more."""
        self._pages.pop(session, None)

    def saved(self, sessions: Collection[str] | None = None) -> int:
        """Return by how many pages sessions hold less than their own numbers of pages together.

        sessions: None for all.
        """
        if not self._pages:
            return 0
        held = [own for name, own in self._pages.items() if sessions is None or name in sessions]
        together = np.concatenate([_NONE, *held])
        return len(together) - len(np.unique(together))

    def held(self, source: str, pages: int, sessions: Collection[str]) -> int:
        """Return how many of the first pages of a session some of `sessions` hold."""
        if source in sessions:
            return pages
        wanted = self._pages.get(source, _NONE)[:pages]
        held = [own for name, own in self._pages.items() if name in sessions]
        return int(np.isin(wanted, np.concatenate([_NONE, *held])).sum())
