"""The segments that wait on a stage, and the next of them that are computed in one forward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.core.messages import Segment


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
        self, takes_turns: Callable[[str], bool], worth: Callable[[Sequence[int]], int]
    ) -> list[Segment]:
        """Remove and return the segments of the next forward, of each session at most one.

        A segment without rows is returned alone. Segments of a session keep their order.

        Args:
            takes_turns: whether the segments of a session are computed alone.
            worth: how many of the first segments are to be computed together, given the rows of each.
        """
        if not self._segments:
            return []
        first = self._segments[0]
        if len(self._segments) == 1 or not first.num_rows or takes_turns(first.session):
            return [self._segments.popleft()]
        together = self._first_of_each_session(takes_turns)
        taken = together[: worth([segment.num_rows for segment in together])]
        numbers = {(segment.session, segment.number) for segment in taken}
        self._segments = deque(
            segment for segment in self._segments if (segment.session, segment.number) not in numbers
        )
        return taken

    def _first_of_each_session(self, takes_turns: Callable[[str], bool]) -> list[Segment]:
        """Return the segments that may be computed together with the first."""
        found: list[Segment] = []
        sessions: set[str] = set()
        rows = 0
        for segment in self._segments:
            if segment.session in sessions:
                continue
            sessions.add(segment.session)
            fits = rows + segment.num_rows <= self._most_rows or not found
            if segment.num_rows and fits and not takes_turns(segment.session):
                found.append(segment)
                rows += segment.num_rows
                if len(found) == BATCH_SEGMENTS:
                    break
        return found
