"""The admission of sessions at the draft node: each is opened at once, waits for capacity, or is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from flowedge.core.errors import BadRequestError, CapacityError, DeviceError
from flowedge.core.request import BATCH, PRIORITIES, Failed, Opened, Output, Priority, Waiting
from flowedge.engine.draft_node.cache_budget import (
    RECENT,
    AdmissionLimits,
    AnswerLengths,
    CacheBudget,
    CacheClaim,
    SharedPrefix,
    check_fits_alone,
)
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.pages import PAGE_ROWS, cache_rows, in_pages

FindPrefix = Callable[[DraftSession], SharedPrefix | None]
_UNKNOWN_DRAFTS = 128  # draft rows that a session is expected to have, before one has needed more
LEAST_S = 1.0  # of an expected wait: a client that tries again at once finds nothing new


class PreemptedError(DeviceError):
    """A session that gave its room to another one; its answer goes on when there is room again."""

    code = "preempted"

    def __init__(self, device: str) -> None:
        super().__init__(device, "the answer gave its room to another one; it goes on later")


class OutgrownError(DeviceError):
    """A session whose caches are full, and smaller than it may need: its answer goes on in larger ones."""

    code = "outgrown"

    def __init__(self, device: str) -> None:
        super().__init__(device, "the answer is longer than was expected; it goes on in larger caches")


class SessionTimes:
    """The beginnings of the open sessions and the durations of the latest ended ones.

    Times are seconds of one clock.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._durations: deque[float] = deque(maxlen=RECENT)

    def begin(self, session: str, now: float) -> None:
        self._began[session] = now

    def end(self, session: str, now: float) -> None:
        self._durations.append(now - self._began.pop(session))

    def expected_s(self, position: int, now: float) -> float:
        """Return the seconds after which a request is expected to be opened.

        The estimate: the open sessions end evenly spread over the mean duration, and each end opens one
        request. The mean is of the latest ended sessions, and of the open ones that have taken longer
        already; their sizes are not looked at.

        Args:
            position: of the request in the queue, 1 for the first.
        """
        ages = [now - began for began in self._began.values()]
        if not ages:
            return LEAST_S
        ended = list(self._durations)
        known = [*ended, *(age for age in ages if not ended or age > fmean(ended))]
        return max(LEAST_S, fmean(known) * position / len(ages))


@dataclass(eq=False)
class WaitingSession:
    """A session that waits.

    Attributes:
        arrived: in seconds of the draft node's clock.
        position: the position in the queue that the client knows, 1 for the first; 0 before that.
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


class _OpenSession(NamedTuple):
    """An open session: its class when it was opened, and whether its answer can go on after a pause."""

    of_class: int
    may_pause: bool


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

        # Answers that go on come first in their rank; of others, those that arrived first.
        return sorted(self._waiting.values(), key=lambda each: (rank(each), not each.session.goes_on))

    def least_urgent(self, priority: Priority, now: float, limits: AdmissionLimits) -> WaitingSession | None:
        """Return the last waiting session if its class is below a priority; None otherwise."""
        ordered = self.ordered(now, limits)
        if ordered and ordered[-1].priority_class(now, limits.promote_s) > class_of(priority):
            return ordered[-1]
        return None


def class_of(priority: Priority) -> int:
    return PRIORITIES.index(priority)


def _no_prefix(_: DraftSession) -> None:
    return None


class SessionAdmission:
    """Holds the sessions that wait, and knows what the open ones hold. Times are seconds of one clock.

    A session is opened when all caches have capacity for the rows that it is expected to come to. Where rows
    take memory on demand, it holds more of them as it comes to need them; elsewhere its caches are so large,
    and it ends and goes on in larger ones when it has outgrown them. The order is that of priorities, then
    answers that go on, then arrivals. A session that does not fit yet may be overtaken by later ones that do,
    but only `limits.overtakes` times: then capacity is kept for it, and nothing behind it is opened first.

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
        self._lengths = AnswerLengths()
        self._most_drafts: deque[int] = deque([0], maxlen=RECENT)  # of the latest ended sessions
        self._opened: dict[str, _OpenSession] = {}  # in the order of opening
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
        """Cache rows that open sessions hold on every stage; what they share counts once."""
        return self._budget.rows - self._budget.saved_rows(self.limits, self._opened)

    def rows_over(self, retained_rows: int) -> int:
        """Return by how many cache rows open and retained sessions are too many (see CacheBudget)."""
        return self._budget.rows_over(retained_rows, self.limits)

    @property
    def next_deadline(self) -> float | None:
        """When the next waiting session is refused, unless it is opened before; None if none waits."""
        first = self._queue.first_arrival
        return None if first is None else first + self.limits.queue_s

    def arrive(self, session: DraftSession, now: float) -> None:
        """Take in a session, which `admit` opens at once if there is capacity.

        Where the queue is full, an arrival takes the place of the last waiting session of a lower class.

        Raises:
            BadRequestError: when a session of its name waits.
            CapacityError: when it can never fit, or the queue is full; in the latter case with the seconds
                until there will be capacity.
        """
        if session.name in self._queue:
            raise BadRequestError(f"session {session.name} exists already")
        claim = CacheClaim(session.capacity, session.capacity if session.strategy.needs_drafter else 0)
        check_fits_alone(claim, self.limits, self._device)
        if session.may_pause:
            claim = claim.of_rows(self._first_rows(session))
        if not self.limits.on_demand:
            session.capacity = claim.rows
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

    def _first_rows(self, session: DraftSession) -> int:
        """Return the rows that a session holds when it is opened."""
        given, answered = len(session.request.given), len(session.request.answered)
        expected = given + self._lengths.to_come(answered)
        if self.limits.on_demand:
            return in_pages(expected + PAGE_ROWS, session.capacity)  # with a page of drafts
        drafts = min(max(_UNKNOWN_DRAFTS, *self._most_drafts), session.strategy.max_draft_rows)
        # With less than its part of all rows, some would be nobody's.
        part = min(self.limits.total_rows, self.limits.drafter_rows) // self.limits.sessions
        return cache_rows(max(expected + drafts, part), session.capacity)

    def withdraw(self, session: str) -> bool:
        """Forget a waiting session; return whether it was waiting."""
        return self._queue.remove(session) is not None

    def grow(self, session: DraftSession, rows: int) -> bool:
        """Have an open session hold what so many rows need; return whether that is more than before."""
        return self.limits.on_demand and self._budget.grow(session.name, in_pages(rows, session.capacity))

    def rows_after(self, session: DraftSession) -> int:
        """Return the rows by which the memory of a session that has ended is counted."""
        rows = session.most_rows if self.limits.on_demand else session.capacity
        return in_pages(rows, session.capacity) + self.limits.state_rows

    def may_share(self, session: str, source: str) -> bool:
        """Return whether a session may share pages with another: both count, if they do not share any yet."""
        shared, limits = self._budget.shared, self.limits
        more = sum(name not in shared for name in (session, source))
        pages = limits.on_demand and limits.page_saving > 0
        return pages and shared.sessions + more <= limits.sharing

    def share(self, session: str, prefix: SharedPrefix | None) -> int:
        """Have a session that begins share the pages of a prefix, and no others; return their rows."""
        self._budget.shared.forget(session)
        if prefix is None or not prefix.pages or not self.may_share(session, prefix.source):
            return 0
        self._budget.shared.share(session, *prefix)
        return prefix.pages * PAGE_ROWS

    def forget(self, session: str) -> None:
        """Count the pages that a session shares no more: it has ended, and is not retained."""
        self._budget.shared.forget(session)

    def displaced(self) -> str | None:
        """Return the open session that is to pause, since they all hold more than there is; None if none is.

        That is the latest one of the least urgent class.
        """
        if not self.rows_over(0):
            return None
        pausing = [name for name, each in self._opened.items() if each.may_pause]
        return max(reversed(pausing), key=lambda name: self._opened[name].of_class, default=None)

    def release(self, session: str, now: float, answer: int | None = None, drafts: int = 0) -> None:
        """Take back what an open session holds: it has ended.

        Args:
            answer: tokens of its answer; None where it is not complete.
            drafts: the most draft rows that it needed room for.
        """
        if self._budget.release(session):
            self._most_drafts.append(drafts)
            self._times.end(session, now)
            del self._opened[session]
            if answer is not None:
                self._lengths.ended(answer)

    def giving_way(self, now: float, find_prefix: FindPrefix = _no_prefix) -> str | None:
        """Return the open session that is to end for the first waiting one; None if none is.

        Only sessions of class batch give way, the latest first, and only to other classes: where all of them
        together have the room that is missing. One that had moved up before it was opened keeps its room.

        find_prefix: as for `admit`.
        """
        urgent = [
            waiting
            for waiting in self._queue.ordered(now, self.limits)
            if waiting.session.request.priority != BATCH
        ]
        batch = [name for name, each in self._opened.items() if each.of_class >= class_of(BATCH)]
        if not urgent or not batch or self._fits(urgent[0], find_prefix):
            return None
        if not self._budget.fits(urgent[0].claim, self.limits, without=batch):
            return None
        return batch[-1]

    def admit(self, now: float, find_prefix: FindPrefix = _no_prefix) -> list[DraftSession]:
        """Return the sessions that are to be opened now; refuse those that have waited too long.

        find_prefix: returns what a waiting session is expected to share when it begins.
        """
        ordered = self._queue.ordered(now, self.limits)
        for position, waiting in enumerate(ordered, 1):
            if now >= waiting.arrived + self.limits.queue_s:
                what = f"device {self._device} had no room for the request within {self.limits.queue_s:g} s"
                self._refuse(waiting, self._later(what, position, now))
        opened = [self._open(waiting, now) for waiting in self._fitting(now, find_prefix)]
        for position, waiting in enumerate(self._queue.ordered(now, self.limits), 1):
            if waiting.position != position:
                waiting.position = position
                expected_s = self._times.expected_s(position, now)
                self._outputs.append(Waiting(waiting.session.name, position, expected_s))
        return opened

    def take_outputs(self) -> list[Output]:
        """Return the outputs for clients since the last call."""
        taken = list(self._outputs)
        self._outputs.clear()
        return taken

    def _fitting(self, now: float, find_prefix: FindPrefix) -> list[WaitingSession]:
        """Return the waiting sessions for which there is capacity, and hold it."""
        fitting: list[WaitingSession] = []
        passed: list[WaitingSession] = []
        for waiting in self._queue.ordered(now, self.limits):
            if any(each.overtaken >= self.limits.overtakes for each in passed):
                break
            if not self._fits(waiting, find_prefix):
                passed.append(waiting)
                continue
            for each in passed:
                each.overtaken += 1
            self._budget.hold(waiting.session.name, waiting.claim)
            self.share(waiting.session.name, find_prefix(waiting.session))
            fitting.append(waiting)
        return fitting

    def _fits(self, waiting: WaitingSession, find_prefix: FindPrefix) -> bool:
        """Return whether there is capacity for a waiting session, with what it would share if need be."""
        if self._budget.fits(waiting.claim, self.limits):
            return True
        prefix = find_prefix(waiting.session)
        return prefix is not None and self._budget.fits(waiting.claim, self.limits, begins_as=prefix)

    def _open(self, waiting: WaitingSession, now: float) -> DraftSession:
        name = waiting.session.name
        self._queue.remove(name)
        self._times.begin(name, now)
        of_class = waiting.priority_class(now, self.limits.promote_s)
        self._opened[name] = _OpenSession(of_class, waiting.session.may_pause)
        if waiting.position:  # the client knows that it waits
            self._outputs.append(Opened(name, now - waiting.arrived))
        return waiting.session

    def _refuse(self, waiting: WaitingSession, error: CapacityError) -> None:
        self._queue.remove(waiting.session.name)
        self._outputs.append(Failed(waiting.session.name, error))

    def _later(self, what: str, position: int, now: float) -> CapacityError:
        return CapacityError.later(what, self._times.expected_s(position, now))
