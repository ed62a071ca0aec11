"""The ended sessions whose rows stages retain, as the draft node knows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowedge.core.arrays import IntArray


@dataclass(frozen=True, eq=False)
class PrefixSource:
    """Rows of a session that another session may begin with.

    Attributes:
        tokens: int64 [n], of the first n rows of the session; all stages have computed these rows.
        draft_rows: true rows of the session that the drafter has.
        given: the first rows, which have never been draft rows, so that all stages have them in their slots.
    """

    session: str
    tokens: IntArray
    draft_rows: int
    given: int = 0


@dataclass(frozen=True, eq=False)
class RetainedSession:
    """The rows that are retained of an ended session.

    Attributes:
        held_rows: of its caches, by which the memory is counted.
        in_drafter: whether the drafter has a state of the session.
    """

    known: PrefixSource
    held_rows: int
    in_drafter: bool


def common_tokens(one: IntArray, other: IntArray) -> int:
    """Return with how many tokens two texts, int64 [n] and [m], begin alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


class RetainedSessions:
    """The retained rows by session, the least recently used first."""

    def __init__(self, most_rows: int) -> None:
        """most_rows: cache rows of all retained sessions together."""
        self._most_rows = most_rows
        self._retained: dict[str, RetainedSession] = {}

    def __len__(self) -> int:
        return len(self._retained)

    def __contains__(self, session: str) -> bool:
        return session in self._retained

    def __iter__(self) -> Iterator[PrefixSource]:
        return iter([retained.known for retained in self._retained.values()])

    @property
    def names(self) -> list[str]:
        return list(self._retained)

    @property
    def rows(self) -> int:
        """The cache rows of all retained sessions together."""
        return sum(retained.held_rows for retained in self._retained.values())

    def fits(self, rows: int) -> bool:
        """Return whether a session with so many cache rows may be retained at all."""
        return rows <= self._most_rows

    def add(self, retained: RetainedSession) -> list[str]:
        """Retain a session; return the sessions that are to be forgotten for it.

        These are sessions that begin no prompt better than this one, and the least recently used as long as
        there are too many rows.
        """
        known = retained.known
        covered = [
            other.session
            for other in self
            if other.draft_rows <= known.draft_rows
            and common_tokens(other.tokens, known.tokens) == len(other.tokens)
        ]
        self._retained[known.session] = retained
        others = [name for name in self._retained if name not in (*covered, known.session)]
        rows = retained.held_rows + sum(self._retained[name].held_rows for name in others)
        while rows > self._most_rows and others:
            covered.append(others.pop(0))
            rows -= self._retained[covered[-1]].held_rows
        return covered

    def use(self, session: str) -> None:
        """Count a session as the most recently used, if it is retained."""
        if session in self._retained:
            self._retained[session] = self._retained.pop(session)

    def pop(self, session: str) -> RetainedSession | None:
        """Forget a session; return what was retained of it, if anything."""
        return self._retained.pop(session, None)

    def oldest(self, rows: int) -> list[str]:
        """Return the least recently used sessions that have so many cache rows together, or all sessions."""
        chosen: list[str] = []
        for name, retained in self._retained.items():
            if rows <= 0:
                break
            chosen.append(name)
            rows -= retained.held_rows
        return chosen
