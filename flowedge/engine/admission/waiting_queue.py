"""The requests that wait for room, in the order in which they are to be opened."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.request import PRIORITIES, Priority
from flowedge.engine.admission.cache_budget import AdmissionLimits, CacheClaim
from flowedge.engine.draft_session import DraftSession


@dataclass(eq=False)
class WaitingSession:
    """A session that waits.

    Attributes:
        arrived: in seconds of the draft node's clock.
        position: the place in the queue that was told to the client, 1 for the first; 0 before that.
        overtaken: how many later requests were opened because this one did not fit.
    """

    session: DraftSession
    claim: CacheClaim
    arrived: float
    position: int = 0
    overtaken: int = 0

    def priority_class(self, now: float, promote_s: float) -> int:
        """Return 0 for the class that is opened first; each `promote_s` of waiting takes off 1."""
        return class_of(self.session.request.priority) - int((now - self.arrived) / promote_s)


class WaitingQueue:
    """Orders waiting sessions by priority, then by arrival. Who waits moves up, so that nobody starves."""

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingSession] = {}  # in the order of arrivals

    def __contains__(self, session: str) -> bool:
        return session in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def names(self) -> list[str]:
        return list(self._waiting)

    @property
    def first_arrival(self) -> float | None:
        """The arrival of the session that has waited longest; None if nobody waits."""
        first = next(iter(self._waiting.values()), None)
        return None if first is None else first.arrived

    def put(self, session: DraftSession, claim: CacheClaim, now: float) -> None:
        self._waiting[session.name] = WaitingSession(session, claim, now)

    def remove(self, session: str) -> WaitingSession | None:
        return self._waiting.pop(session, None)

    def ordered(self, now: float, limits: AdmissionLimits) -> list[WaitingSession]:
        """Return the waiting sessions, the one that is to be opened first at the beginning."""

        def rank(waiting: WaitingSession) -> int:
            return max(0, waiting.priority_class(now, limits.promote_s))

        return sorted(self._waiting.values(), key=rank)  # of one rank, in the order of arrivals

    def least_urgent(self, priority: Priority, now: float, limits: AdmissionLimits) -> WaitingSession | None:
        """Return the last waiting session if its class is below a priority; None otherwise."""
        ordered = self.ordered(now, limits)
        if ordered and ordered[-1].priority_class(now, limits.promote_s) > class_of(priority):
            return ordered[-1]
        return None


def class_of(priority: Priority) -> int:
    return PRIORITIES.index(priority)
