"""The KV caches that a stage retains of ended sessions, for the prefixes of later sessions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowedge.core.arrays import IntArray
from flowedge.core.errors import PrefixLostError, ProtocolError
from flowedge.core.messages import Close, Prefix
from flowedge.engine.jobs import CopiedRows
from flowedge.engine.stage.cached_rows import CachedRows


@dataclass(frozen=True, eq=False)
class _RetainedCache:
    """The cache of an ended session.

    Attributes:
        held_rows: by which it counts; slots: int64 [n], where the n retained context rows are.
    """

    held_rows: int
    slots: IntArray


class RetainedCaches:
    """The retained caches by session. Only the draft node says which they are, and for how long."""

    def __init__(self, most: int) -> None:
        """most: number of caches that may be retained."""
        self._most = most
        self._caches: dict[str, _RetainedCache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def held_rows(self) -> int:
        """The rows by which all retained caches count together."""
        return sum(cache.held_rows for cache in self._caches.values())

    def retain(self, close: Close, held_rows: int, tail: CachedRows) -> bool:
        """Retain the cache of a session if its Close says so; return whether it is retained.

        Args:
            held_rows: by which the cache counts; tail: the rows in it.
        """
        if not 0 < close.kept <= tail.context or len(self._caches) >= self._most:
            return False
        self._caches[close.session] = _RetainedCache(held_rows, tail.slots_of(close.kept))
        return True

    def copied(self, prefix: Prefix, source: CachedRows | None) -> CopiedRows:
        """Return the rows that a new session begins with.

        Args:
            source: the rows of the session of the prefix; None if it is not open.

        Raises:
            PrefixLostError: when no rows of that session are held.
            ProtocolError: when fewer rows of it are context, or rows in shared pages are not in their slots.
        """
        name, rows = prefix.session, prefix.rows
        if source is None and name not in self._caches:
            raise PrefixLostError(f"no rows of session {name} are held here")
        context = len(self._caches[name].slots) if source is None else source.context
        if not 0 < rows <= context:
            raise ProtocolError(f"{rows} rows of session {name} are asked for, which has {context}")
        slots = self._caches[name].slots[:rows] if source is None else source.slots_of(rows)
        if not np.array_equal(slots[: prefix.shared], np.arange(prefix.shared)):
            raise ProtocolError(f"{prefix.shared} rows of session {name} are not in whole pages of it")
        return CopiedRows(name, slots, prefix.shared)

    def forget(self, session: str) -> bool:
        """Retain a session's cache no more; return whether it was retained."""
        return self._caches.pop(session, None) is not None

    def take_all(self) -> list[str]:
        """Retain no cache any more; return the sessions whose caches were retained."""
        sessions = list(self._caches)
        self._caches.clear()
        return sessions
