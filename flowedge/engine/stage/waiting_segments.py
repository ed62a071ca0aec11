"""The segments that wait on a stage, and how many of them are best computed in one forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.core.messages import Segment
from flowedge.strategies.auto.row_times import RowTimes

_WORTH = 0.98  # share of the time for each segment to which a larger forward must bring it down


class ForwardTimes:
    """Times of a stage's forwards by their rows, of all sessions together."""

    def __init__(self) -> None:
        self._times = RowTimes()

    def observe(self, rows: int, seconds: float) -> None:
        """Take in the time of a forward."""
        self._times.observe(rows, seconds)

    def worth(self, waiting: Sequence[int]) -> int:
        """Return how many of the first waiting segments are best computed together.

        A stage that always has segments waiting finishes the most of them if each forward takes the least
        time for each of its segments. Where rows cost nothing, that is the most segments; where a forward
        takes as long as its segments would apart, it is one, because the first results are out sooner then.

        Args:
            waiting: the rows of each segment, 1 or more segments.
        """
        seconds = self._times.times(np.cumsum(waiting).astype(np.float64))
        if not seconds[0]:
            return len(waiting)
        best, least = 1, float(seconds[0])
        for count, taken in enumerate(seconds.tolist(), start=1):
            if taken / count < least * (_WORTH if count > best else 1.0):
                best, least = count, taken / count
        return best


class WaitingSegments:
    """Segments of all sessions, in the order of their arrival."""

    def __init__(self, most_rows: int) -> None:
        """most_rows: of a forward."""
        self._segments: deque[Segment] = deque()
        self._most_rows = most_rows

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def put(self, segment: Segment) -> None:
        self._segments.append(segment)

    def replace(self, session: str, replaced: Callable[[Segment], Segment]) -> None:
        """Put what `replaced` returns in the place of each segment of a session."""
        self._segments = deque(
            replaced(segment) if segment.session == session else segment for segment in self._segments
        )

    def drop(self, session: str) -> None:
        """Remove the segments of a session."""
        self._segments = deque(segment for segment in self._segments if segment.session != session)

    def take(
        self, computed_alone: Callable[[str], bool], worth: Callable[[Sequence[int]], int]
    ) -> list[Segment]:
        """Remove and return the segments of the next forward, of each session at most one.

        A segment without rows is returned alone. Segments of a session keep their order.

        Args:
            computed_alone: whether the segments of a session are computed alone.
            worth: how many of the first segments are to be computed together, given the rows of each.
        """
        if not self._segments:
            return []
        first = self._segments[0]
        if len(self._segments) == 1 or not first.num_rows or computed_alone(first.session):
            return [self._segments.popleft()]
        together = self._first_of_each_session(computed_alone)
        taken = together[: worth([segment.num_rows for segment in together])]
        numbers = {(segment.session, segment.number) for segment in taken}
        self._segments = deque(
            segment for segment in self._segments if (segment.session, segment.number) not in numbers
        )
        return taken

    def _first_of_each_session(self, computed_alone: Callable[[str], bool]) -> list[Segment]:
        """Return the segments that may be computed together with the first."""
        found: list[Segment] = []
        sessions: set[str] = set()
        rows = 0
        for segment in self._segments:
            if segment.session in sessions:
                continue
            sessions.add(segment.session)
            fits = rows + segment.num_rows <= self._most_rows or not found
            if segment.num_rows and fits and not computed_alone(segment.session):
                found.append(segment)
                rows += segment.num_rows
                if len(found) == BATCH_SEGMENTS:
                    break
        return found
