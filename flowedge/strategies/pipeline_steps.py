"""The steps of a pipeline that several sessions share: each sends at most one segment a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class AwaitedLayer:
    """What a session expects of the layer that is being drafted for it.

    Attributes:
        layer_s: seconds until it comes.
        tokens: expected among its nodes; 0 where no step is to wait for it.
    """

    layer_s: float
    tokens: float


class SteppingSession(Protocol):
    """A session that sends at most one segment in each pipeline step."""

    @property
    def awaited(self) -> AwaitedLayer | None:
        """The layer that is being drafted for the session, if any."""
        ...

    def expected(self) -> tuple[float, float]:
        """Return what a session with a segment to send expects.

        Returns:
            The tokens among the segment's rows, and the seconds until the next one may leave after it.
        """
        ...

    @property
    def may_send_segment(self) -> bool:
        """Whether the session has a segment to send now."""
        ...

    @property
    def awaits_layer(self) -> bool:
        """Whether the session waits for a layer of its draft tree, after which it has a segment to send."""
        ...


class PipelineSteps:
    """The sessions that step together, and those of their segments that are in flight.

    A step begins when fewer steps than are allowed, mostly one a stage, are in flight, and no session still
    waits for its segment of the step. A step takes the segments of all sessions that have one, so that stages
    compute them in one forward and the draft node drafts for all of them at once when they return. Where
    drafting limits the speed, it waits for the layers that are being drafted if that brings the sessions
    together more than it costs them. It is in flight until the segments of all its sessions have returned. A
    session that misses or ends leaves all steps at once.

    No session waits for another for ever: what is waited for is a layer that is being drafted, a credit of
    the first stage or a segment in flight, none of which waits for a step.
    """

    def __init__(self) -> None:
        self._most = 1
        self._sessions: list[SteppingSession] = []
        self._asked: list[SteppingSession] = []  # in the present round of questions
        self._due: list[SteppingSession] = []  # that are still to send their segment of the latest step
        self._in_flight: deque[list[SteppingSession]] = deque()  # oldest step first

    @property
    def in_flight(self) -> int:
        """Number of steps in flight."""
        return len(self._in_flight)

    def join(self, session: SteppingSession, most: int) -> None:
        """Take in a session that begins to decode, with at most so many steps in flight."""
        self._sessions.append(session)
        self._most = most

    def allow(self, most: int) -> None:
        """Let so many steps be in flight from now on."""
        self._most = most

    def leave(self, session: SteppingSession) -> None:
        """Forget a session that has ended, if it had joined."""
        self.flush(session)
        self._due = _without(self._due, session)
        self._asked = _without(self._asked, session)
        self._sessions = _without(self._sessions, session)

    def joins_step(self, session: SteppingSession) -> bool:
        """Return whether a session is to send its segment now.

        All sessions are asked in rounds, in any order. A step begins with the first question of a round, so
        that all its segments are sent in this round.
        """
        if not self._asked or session in self._asked:
            self._asked = []
            self._begin()
        self._asked.append(session)
        if session not in self._due:
            return False
        self._due = _without(self._due, session)
        if not session.may_send_segment:
            return False
        self._in_flight[-1].append(session)
        return True

    def take_back(self, session: SteppingSession) -> None:
        """Note that the session's oldest segment in flight has returned."""
        next(step for step in self._in_flight if session in step).remove(session)
        self._drop_empty()

    def flush(self, session: SteppingSession) -> None:
        """Note that all segments of a session in flight are dead."""
        for step in self._in_flight:
            if session in step:
                step.remove(session)
        self._drop_empty()

    def _begin(self) -> None:
        """Begin a step if its time has come."""
        self._due = []
        self._drop_empty()
        if len(self._in_flight) >= self._most or any(other.awaits_layer for other in self._sessions):
            return
        due = [other for other in self._sessions if other.may_send_segment]
        if due and not (len(self._sessions) > 1 and self._waits_for_layers(due)):
            self._due = due
            self._in_flight.append([])

    def _waits_for_layers(self, due: Sequence[SteppingSession]) -> bool:
        """Return whether a step of several sessions, of which these have segments, waits for layers."""
        layers = [layer for other in self._sessions if (layer := other.awaited) is not None]
        if not any(layer.tokens for layer in layers):
            return False
        sent, next_s = zip(*(other.expected() for other in due), strict=True)
        layer_s, drafted = max(layer.layer_s for layer in layers), sum(layer.tokens for layer in layers)
        return is_worth_waiting(layer_s, drafted, sum(sent), min(next_s))

    def _drop_empty(self) -> None:
        """Forget the steps of which nothing is in flight and nothing is still to be sent."""
        if all(self._in_flight):
            return
        latest = self._in_flight[-1] if self._in_flight and self._due else None
        self._in_flight = deque(step for step in self._in_flight if step or step is latest)


def is_worth_waiting(layer_s: float, drafted: float, sent: float, next_s: float) -> bool:
    """Return whether a segment waits for the layer that is being drafted.

    Waiting delays the rows that could be sent now until the layer comes. It brings the layer's nodes forward
    to this segment, from the next one.

    Args:
        layer_s: time until the layer comes.
        drafted: expected tokens among the layer's nodes; sent: among the rows that could be sent now.
        next_s: time until the next segment may leave, if this one leaves now.
    """
    return drafted * (next_s - layer_s) >= sent * layer_s


def _without(sessions: list[SteppingSession], session: SteppingSession) -> list[SteppingSession]:
    return [other for other in sessions if other is not session]
