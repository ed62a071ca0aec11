"""The admission of sessions at the draft node: each is opened at once, waits for room, or is refused."""

from __future__ import annotations

from collections import deque

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.request import Failed, Opened, Output, Waiting
from flowedge.engine.admission.cache_budget import (
    AdmissionLimits,
    CacheBudget,
    CacheClaim,
    check_fits_alone,
)
from flowedge.engine.admission.session_times import SessionTimes
from flowedge.engine.admission.waiting_queue import WaitingQueue, WaitingSession
from flowedge.engine.draft_session import DraftSession


class SessionAdmission:
    """Holds the sessions that wait, and knows what the open ones hold. Times are seconds of one clock.

    A session is opened when all caches have room for it. The order is that of priorities, then of arrivals. A
    session that does not fit yet may be overtaken by later ones that do, but only `limits.overtakes` times:
    then room is kept for it, and nothing behind it is opened before it.

    Attributes:
        limits: may be replaced.
    """

    def __init__(self, device: str, limits: AdmissionLimits) -> None:
        """device: the draft node, for messages."""
        self.limits = limits
        self._device = device
        self._budget = CacheBudget()
        self._queue = WaitingQueue()
        self._times = SessionTimes()
        self._outputs: deque[Output] = deque()

    @property
    def waiting(self) -> list[str]:
        """The names of the sessions that wait."""
        return self._queue.names

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def is_waiting(self, session: str) -> bool:
        return session in self._queue

    @property
    def held_rows(self) -> int:
        """Cache rows that open sessions hold on every stage."""
        return self._budget.rows

    def rows_over(self, kept_rows: int) -> int:
        """Return by how many cache rows open and kept sessions are beyond the room (see CacheBudget)."""
        return self._budget.rows_over(kept_rows, self.limits)

    @property
    def next_deadline(self) -> float | None:
        """When the next waiting session is refused, unless it is opened before; None if none waits."""
        first = self._queue.first_arrival
        return None if first is None else first + self.limits.queue_s

    def arrive(self, session: DraftSession, now: float) -> None:
        """Take in a session, which `admit` opens at once if there is room.

        Where the queue is full, an arrival takes the place of the last waiting session of a lower class.

        Raises:
            BadRequestError: when a session of its name waits.
            CapacityError: when it can never fit, or the queue is full; in the latter case with the seconds
                until there will be room.
        """
        if session.name in self._queue:
            raise BadRequestError(f"session {session.name} exists already")
        claim = CacheClaim(session.capacity, session.capacity if session.strategy.needs_drafter else 0)
        check_fits_alone(claim, self.limits, self._device)
        waiting = len(self._queue)
        if waiting >= self.limits.queue_length and (waiting or not self._budget.fits(claim, self.limits)):
            last = self._queue.least_urgent(session.request.priority, now, self.limits)
            error = self._later(
                f"{waiting} requests wait for device {self._device} already", waiting + 1, now
            )
            if last is None:
                raise error
            self._refuse(last, error)
        self._queue.put(session, claim, now)

    def withdraw(self, session: str) -> bool:
        """Forget a waiting session; return whether it was waiting."""
        return self._queue.remove(session) is not None

    def release(self, session: str, now: float) -> None:
        """Take back what an open session holds: it has ended."""
        if self._budget.release(session):
            self._times.end(session, now)

    def admit(self, now: float) -> list[DraftSession]:
        """Return the sessions that are to be opened now; refuse those that have waited too long."""
        ordered = self._queue.ordered(now, self.limits)
        for place, waiting in enumerate(ordered, 1):
            if now >= waiting.arrived + self.limits.queue_s:
                what = f"device {self._device} had no room for the request within {self.limits.queue_s:g} s"
                self._refuse(waiting, self._later(what, place, now))
        opened = [self._open(waiting, now) for waiting in self._fitting(now)]
        for position, waiting in enumerate(self._queue.ordered(now, self.limits), 1):
            if waiting.position != position:
                waiting.position = position
                expected_s = self._times.expected_s(position, now)
                self._outputs.append(Waiting(waiting.session.name, position, expected_s))
        return opened

    def take_outputs(self) -> list[Output]:
        """Return what clients are to be told since the last call."""
        taken = list(self._outputs)
        self._outputs.clear()
        return taken

    def _fitting(self, now: float) -> list[WaitingSession]:
        """Return the waiting sessions that there is room for, and hold it."""
        fitting: list[WaitingSession] = []
        passed: list[WaitingSession] = []
        for waiting in self._queue.ordered(now, self.limits):
            if any(each.overtaken >= self.limits.overtakes for each in passed):
                break
            if not self._budget.fits(waiting.claim, self.limits):
                passed.append(waiting)
                continue
            for each in passed:
                each.overtaken += 1
            self._budget.hold(waiting.session.name, waiting.claim)
            fitting.append(waiting)
        return fitting

    def _open(self, waiting: WaitingSession, now: float) -> DraftSession:
        name = waiting.session.name
        self._queue.remove(name)
        self._times.begin(name, now)
        if waiting.position:  # the client has been told that it waits
            self._outputs.append(Opened(name, now - waiting.arrived))
        return waiting.session

    def _refuse(self, waiting: WaitingSession, error: CapacityError) -> None:
        self._queue.remove(waiting.session.name)
        self._outputs.append(Failed(waiting.session.name, error))

    def _later(self, what: str, place: int, now: float) -> CapacityError:
        return CapacityError.later(what, self._times.expected_s(place, now))
