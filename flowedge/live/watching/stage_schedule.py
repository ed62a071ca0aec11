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
        self._last: list[tuple[StageTime, StageWork]] = []

    @property
    def hop_s(self) -> float:
        """The estimated seconds from device to device; 0 while nothing is known."""
        return min(self._hops, default=0.0)

    def place(self, left: float | None, returned: float, times: Sequence[StageTime]) -> list[StageWork]:
        """Return the computations of a segment, without those that a segment before it shared.

        Args:
            left: when the segment left the draft node; None if that is not known.
            times: of each stage, in order.
        """
        total, links = sum(time.seconds for time in times), len(times) + 1
        if left is not None:
            self._hops.append(max(returned - left - total, 0.0) / links)
        hop = self.hop_s
        earliest: list[StageWork] = []
        there = left if left is not None else returned - total - hop * links
        for stage, time in enumerate(times):
            known = self._last[stage] if stage < len(self._last) else None
            if known is not None and known[0] == time and time.seconds > 0 and known[1].end <= returned:
                work = known[1]  # the segments of a batch have the same time
            else:
                start = max(there + hop, known[1].end if known is not None else there)
                work = StageWork(stage, start, start + time.seconds, time.rows)
            earliest.append(work)
            there = work.end
        missing = returned - hop - there
        placed: list[StageWork] = []
        for work, time in zip(earliest, times, strict=True):
            known = self._last[work.stage] if work.stage < len(self._last) else None
            if known is not None and work is known[1]:
                continue
            shift = missing * (work.stage + 1) / len(times)
            before = known[1].end if known is not None else 0.0
            end = max(min(work.end + shift, returned), before)
            start = min(max(end - time.seconds, before), end)
            moved = StageWork(work.stage, start, end, work.rows)
            self._remember(moved, time)
            if time.rows:
                placed.append(moved)
        return placed

    def _remember(self, work: StageWork, time: StageTime) -> None:
        if work.stage < len(self._last):
            self._last[work.stage] = (time, work)
        else:
            self._last.append((time, work))
