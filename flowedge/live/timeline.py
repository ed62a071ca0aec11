"""A record of what a device did lately, in a bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_EVENTS = 20_000  # of all sessions together
MAX_SESSIONS = 64


class TimelineEvent(NamedTuple):
    """An activity of a device. A momentary event has `end` equal to `start`.

    Attributes:
        kind: a word of engine/activity.py.
        start, end: seconds of one monotonic clock.
        rows: rows computed or sent.
    """

    kind: str
    start: float
    end: float
    rows: int


@dataclass
class _SessionEvents:
    events: deque[TimelineEvent] = field(default_factory=deque)
    dropped: int = 0


class Timeline:
    """The events of the latest sessions. Beyond the limits the oldest session's events are dropped first.

    Adding an event takes constant time and memory is bounded, so that a device can always record.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_events = max_events
        self._max_sessions = max_sessions
        self._sessions: dict[str, _SessionEvents] = {}  # the oldest first
        self._held = 0

    def add(self, session: str, kind: str, start: float, end: float, rows: int = 0) -> None:
        """Record what the device did for a session."""
        known = self._sessions.get(session)
        if known is None:
            known = self._open(session)
        known.events.append(TimelineEvent(kind, start, end, rows))
        self._held += 1
        if self._held > self._max_events:
            self._drop_one()

    def of(self, session: str) -> tuple[list[TimelineEvent], int]:
        """Return a session's events, in the order of their ends, and how many older ones were dropped."""
        known = self._sessions.get(session)
        return ([], 0) if known is None else (list(known.events), known.dropped)

    def _open(self, session: str) -> _SessionEvents:
        while len(self._sessions) >= self._max_sessions:
            oldest = next(iter(self._sessions))
            self._held -= len(self._sessions.pop(oldest).events)
        made = self._sessions[session] = _SessionEvents()
        return made

    def _drop_one(self) -> None:
        for known in self._sessions.values():
            if known.events:
                known.events.popleft()
                known.dropped += 1
                self._held -= 1
                return
