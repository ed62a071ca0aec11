"""The turns of a lock-step strategy."""

from __future__ import annotations


class InFlightLimit:
    """Lets a segment enter the pipeline for each segment that returns, so that `width` are in flight.

    This is a turn of the papers' lock-step without a barrier: a stage works on one segment at a time, and a
    segment enters when the segment `width` turns before it has returned. Segments of an earlier round, all of
    whose rows are dead, hold no turn.
    """

    def __init__(self, width: int, granted: int) -> None:
        """`granted` is the number of credits; each segment needs a credit of the first stage."""
        self._width = width
        self._credits = granted
        self._in_flight = 0
        self._dead = 0  # segments in flight of earlier rounds

    @property
    def open(self) -> bool:
        """Whether a turn is free."""
        return self._in_flight < self._width

    @property
    def idle(self) -> bool:
        """Whether no segment of this round is in flight."""
        return not self._in_flight

    @property
    def oldest_lives(self) -> bool:
        """Whether the next segment to return belongs to this round."""
        return not self._dead

    @property
    def may_send(self) -> bool:
        """Whether a turn is free and there is a credit."""
        return self.open and self._credits > 0

    def grant(self) -> None:
        self._credits += 1

    def send(self) -> None:
        """Count a segment that enters."""
        self._credits -= 1
        self._in_flight += 1

    def take_back(self) -> bool:
        """Count a segment that returns; returns whether the segment belongs to this round."""
        if self._dead:
            self._dead -= 1
            return False
        self._in_flight -= 1
        return True

    def flush(self) -> None:
        """Begin a new round: all segments in flight are dead."""
        self._dead += self._in_flight
        self._in_flight = 0
