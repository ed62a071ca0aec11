"""The turns of a lock-step strategy."""

from __future__ import annotations

from collections import deque


class InFlightLimit:
    """Lets a segment enter the pipeline for each segment that returns, so that `width` are in flight.

    This is a turn of the papers' lock-step without a barrier: a stage works on one segment at a time, and a
    segment enters when the segment `width` turns before it has returned. A turn may hold several segments; it
    ends when the last of them returns. Segments of an earlier round, all of whose rows are dead, hold no
    turn.
    """

    def __init__(self, width: int, granted: int) -> None:
        """`granted` is the number of credits; each segment needs a credit of the first stage."""
        self._width = width
        self._credits = granted
        self._in_flight: deque[int] = deque()  # segments of each turn of this round, oldest turn first
        self._dead = 0  # segments in flight of earlier rounds

    @property
    def open(self) -> bool:
        """Whether a turn is free."""
        return len(self._in_flight) < self._width

    @property
    def idle(self) -> bool:
        """Whether no segment of this round is in flight."""
        return not self._in_flight

    @property
    def oldest_lives(self) -> bool:
        """Whether the next segment to return belongs to this round."""
        return not self._dead

    @property
    def has_credit(self) -> bool:
        return self._credits > 0

    @property
    def may_send(self) -> bool:
        """Whether a turn is free and there is a credit."""
        return self.open and self.has_credit

    def grant(self) -> None:
        self._credits += 1

    def send(self, same_turn: bool = False) -> None:
        """Count a segment that enters, in a turn of its own or in the latest turn, if that has not ended."""
        self._credits -= 1
        if same_turn and self._in_flight:
            self._in_flight[-1] += 1
        else:
            self._in_flight.append(1)

    def take_back(self) -> bool:
        """Count a segment that returns; returns whether the segment belongs to this round."""
        if self._dead:
            self._dead -= 1
            return False
        self._in_flight[0] -= 1
        if not self._in_flight[0]:
            self._in_flight.popleft()
        return True

    def flush(self) -> None:
        """Begin a new round: all segments in flight are dead."""
        self._dead += sum(self._in_flight)
        self._in_flight.clear()
