"""The segments in flight, and when each is expected back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from flowedge.strategies.auto.step_times import TripTimes

# Share of an interval by which a segment is sent earlier than it would reach the slowest stage just in time:
# no expectation is exact, and what the slowest stage is idle for is lost.
_SPARE = 0.25


@dataclass(slots=True)
class SegmentInFlight:
    """One segment.

    Attributes:
        number: counted from 1.
        in_step: whether a step lasts until its return (PipelineSteps).
        alone: expected time of its return if no other segment is in its way, in seconds of the events' clock.
        interval: seconds by which it returns behind another one at least.
        rest: seconds of its trip from the slowest stage on.
        returns: expected time of its return.
        lives: whether it has rows of the tree.
    """

    number: int
    in_step: bool
    alone: float
    interval: float
    rest: float
    returns: float
    lives: bool = True


class SegmentsInFlight:
    """A queue in the order of sending, and the time at which the first stage is free again.

    Attributes:
        sent: segments since the session began.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._segments: deque[SegmentInFlight] = deque()
        self._first_stage_free = 0.0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def returned(self) -> int:
        return self.sent - len(self)

    def send(self, now: float, times: TripTimes, rows: int, *, in_step: bool = False) -> None:
        """Add a segment of this many rows."""
        start, index = max(now, self._first_stage_free), rows - 1
        self.sent += 1
        alone, interval = start + float(times.trip[index]), float(times.interval[index])
        returns, rest = max(alone, self._last_return + interval), float(times.rest[index])
        self._segments.append(SegmentInFlight(self.sent, in_step, alone, interval, rest, returns))
        self._first_stage_free = start + float(times.first[index])

    def take_back(self) -> SegmentInFlight:
        """Remove and return the oldest segment."""
        return self._segments.popleft()

    def keep(self, living: Collection[int], now: float) -> None:
        """Note the numbers of the segments that have rows still: the slowest stage skips the others."""
        before = -math.inf
        for segment in self._segments:
            segment.lives = segment.number in living
            if segment.lives:
                skipped = max(segment.alone, before + segment.interval, now + segment.rest)
                before = segment.returns = min(segment.returns, skipped)

    def all_died(self, now: float) -> None:
        """Note that no row in flight lives: the stages drop them, the first is free, and no step lasts."""
        self._first_stage_free = now
        for segment in self._segments:
            segment.in_step = segment.lives = False

    def next_return(self, now: float) -> float:
        """Return the time until the next living segment is expected; infinity if none is in flight."""
        living = (segment.returns for segment in self._segments if segment.lives)
        return max(next(living, math.inf) - now, 0.0)

    def wait(self, now: float, times: TripTimes, rows: int) -> float:
        """Return for how long a segment need not be sent, because it would wait in the pipeline.

        Args:
            rows: of the segment; those beyond the most that the times are of do not count.
        """
        index = min(rows, len(times.trip)) - 1
        interval, trip = float(times.interval[index]), float(times.trip[index])
        behind = self._last_return + (1 - _SPARE) * interval - trip
        return max(self._first_stage_free, behind, now) - now

    @property
    def _last_return(self) -> float:
        living = (segment.returns for segment in reversed(self._segments) if segment.lives)
        return next(living, -math.inf)
