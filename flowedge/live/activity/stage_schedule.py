"""When each stage computed a segment, from what is known of it when it is back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from flowedge.core.messages import StageTime

_HOPS = 64  # of segments, among which the shortest time on a link is sought


class StageWork(NamedTuple):
    """A computation of a stage; `stage` counts from 0, times are in seconds of the draft node's clock."""

    stage: int
    start: float
    end: float
    rows: int


class _Forward(NamedTuple):
    """The last forward of a stage, and the sessions that are known to have shared it."""

    time: StageTime
    work: StageWork
    sessions: set[str]

    def shared_with(self, session: str, time: StageTime, returned: float) -> bool:
        """Return whether it computed a segment that took this time.

        Segments of a batch have the same time. Two forwards can have it as well, so what tells them apart is
        that a forward has at most one segment of a session.
        """
        same = self.time == time and time.seconds > 0 and self.work.end <= returned
        return same and session not in self.sessions


class StageSchedule:
    """Places the computations of segments in time.

    A returned segment tells how long each stage computed it, not when. Stages compute what comes in order,
    one forward at a time. So a stage began a segment when the segment was there and the segment before it was
    done. The time on a link is taken to be the same on all links: the shortest that a recent segment leaves
    besides its computing. What is missing until the return, or is too much, is spread over the stages in
    proportion to their place. So the last computation ends before the return, and the errors are those of the
    links' times and of waits for a busy processor.
    """

    def __init__(self) -> None:
        self._hops: deque[float] = deque(maxlen=_HOPS)
        self._last: list[_Forward] = []

    @property
    def hop_s(self) -> float:
        """The estimated seconds from device to device; 0 while nothing is known."""
        return min(self._hops, default=0.0)

    def schedule(
        self, session: str, left: float | None, returned: float, times: Sequence[StageTime]
    ) -> list[StageWork]:
        """Return the computations of a segment, without those that a segment before it shared.

        Args:
            session: the segment's.
            left: when the segment left the draft node; None if that is not known.
            times: of each stage, in order.
        """
        total, links = sum(time.seconds for time in times), len(times) + 1
        if left is not None:
            self._hops.append(max(returned - left - total, 0.0) / links)
        hop = self.hop_s
        last = [*self._last, *[None] * (len(times) - len(self._last))]
        earliest: list[StageWork] = []
        there = left if left is not None else returned - total - hop * links
        shared: set[int] = set()
        for stage, (time, known) in enumerate(zip(times, last, strict=True)):
            if known is not None and known.shared_with(session, time, returned):
                known.sessions.add(session)
                shared.add(stage)
                work = known.work
            else:
                start = max(there + hop, known.work.end if known is not None else there)
                work = StageWork(stage, start, start + time.seconds, time.rows)
            earliest.append(work)
            there = work.end
        missing = returned - hop - there
        placed: list[StageWork] = []
        for work, time, known in zip(earliest, times, last, strict=True):
            if work.stage in shared:
                continue
            shift = missing * (work.stage + 1) / len(times)
            before = known.work.end if known is not None else 0.0
            end = max(min(work.end + shift, returned), before)
            start = min(max(end - time.seconds, before), end)
            moved = StageWork(work.stage, start, end, work.rows)
            self._remember(_Forward(time, moved, {session}))
            if time.rows:
                placed.append(moved)
        return placed

    def _remember(self, forward: _Forward) -> None:
        if forward.work.stage < len(self._last):
            self._last[forward.work.stage] = forward
        else:
            self._last.append(forward)
