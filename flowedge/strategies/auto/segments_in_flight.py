"""The segments in flight, and when each is expected back."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from flowedge.strategies.auto.step_times import TripTimes


@dataclass(frozen=True)
class SegmentInFlight:
    """One segment.

    Attributes:
        in_step: whether a step lasts until its return (PipelineSteps).
        returns: expected time of its return, in seconds of the events' clock.
    """

    in_step: bool
    returns: float


class SegmentsInFlight:
    """A queue in the order of sending, and the time at which the first stage is free again."""

    def __init__(self) -> None:
        self._segments: deque[SegmentInFlight] = deque()
        self._first_stage_free = 0.0

    def __len__(self) -> int:
        return len(self._segments)

    def send(self, now: float, times: TripTimes, rows: int, *, in_step: bool = False) -> None:
        """Add a segment of this many rows."""
        start, index = max(now, self._first_stage_free), rows - 1
        before = self._segments[-1].returns if self._segments else -math.inf
        returns = max(start + float(times.trip[index]), before + float(times.interval[index]))
        self._segments.append(SegmentInFlight(in_step, returns))
        self._first_stage_free = start + float(times.first[index])

    def take_back(self) -> SegmentInFlight:
        """Remove and return the oldest segment."""
        return self._segments.popleft()

    def all_died(self, now: float) -> None:
        """Note that no row in flight lives: the stages drop them, the first is free, and no step lasts."""
        self._first_stage_free = now
        self._segments = deque(replace(segment, in_step=False) for segment in self._segments)

    def next_return(self, now: float) -> float:
        """Return the time until the next segment is expected; infinity if none is in flight."""
        return max(self._segments[0].returns - now, 0.0) if self._segments else math.inf

    def first_stage_busy(self, now: float) -> float:
        """Return the time until the first stage is expected to be free."""
        return max(self._first_stage_free - now, 0.0)
