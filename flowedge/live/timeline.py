"""A record of what a device did lately, in a bounded memory, and its protobuf message."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flowedge.core.errors import ProtocolError
from flowedge.engine.activity import ACTIVITIES
from flowedge.v1 import agent_pb2 as pb

MAX_EVENTS = 20_000  # of all sessions together
MAX_SESSIONS = 64
_CODES: dict[str, int] = {kind: pb.Activity.Value(f"ACTIVITY_{kind.upper()}") for kind in ACTIVITIES}
_KINDS = {code: kind for kind, code in _CODES.items()}


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

    Adding an event takes constant time and memory is bounded, so that a device can always record. Usable from
    several threads.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_events = max_events
        self._max_sessions = max_sessions
        self._sessions: dict[str, _SessionEvents] = {}  # the oldest first
        self._held = 0
        self._lock = threading.Lock()

    def add(self, session: str, kind: str, start: float, end: float, rows: int = 0) -> None:
        with self._lock:
            known = self._sessions.get(session)
            if known is None:
                known = self._open(session)
            known.events.append(TimelineEvent(kind, start, end, rows))
            self._held += 1
            if self._held > self._max_events:
                self._drop_one()

    def of(self, session: str) -> tuple[list[TimelineEvent], int]:
        """Return a session's events, in the order of their ends, and how many older ones were dropped."""
        with self._lock:
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


def encode(events: Sequence[TimelineEvent], dropped: int) -> pb.TimelineReply:
    """Return the message that carries events; `dropped` older ones are missing."""
    return pb.TimelineReply(
        activity=[_CODES[event.kind] for event in events],  # type: ignore[misc]
        start_s=[event.start for event in events],
        end_s=[event.end for event in events],
        rows=[event.rows for event in events],
        dropped=dropped,
    )


def decode(reply: pb.TimelineReply, device: str) -> tuple[list[TimelineEvent], int]:
    """Return the events of a device, and how many older ones were dropped.

    Raises:
        ProtocolError: when the message makes no sense; it names the device.
    """
    count = len(reply.activity)
    if count > MAX_EVENTS or not count == len(reply.start_s) == len(reply.end_s) == len(reply.rows):
        raise ProtocolError(
            f"device {device} sent a timeline of {count} kinds, {len(reply.start_s)} starts, "
            f"{len(reply.end_s)} ends and {len(reply.rows)} rows; at most {MAX_EVENTS} of each are taken"
        )
    events: list[TimelineEvent] = []
    for code, start, end, rows in zip(reply.activity, reply.start_s, reply.end_s, reply.rows, strict=True):
        kind = _KINDS.get(code)
        if kind is None:
            raise ProtocolError(f"device {device} sent a timeline with the unknown activity {code}")
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ProtocolError(f"device {device} sent a timeline in which {kind} goes from {start} to {end}")
        events.append(TimelineEvent(kind, start, end, rows))
    return events, reply.dropped
