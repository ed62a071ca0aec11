"""The turns of a lock-step method."""

from __future__ import annotations


class TurnGate:
    """Lets a segment enter for each one that has come back, so that `width` of them are under way.

    That is a turn of the papers' lock-step without a barrier: a stage works on one segment at a time, and
    nothing enters before what is `width` turns ahead of it has left. Segments of an earlier round, whose
    rows are all dead, hold no turn.
    """

    def __init__(self, width: int, granted: int) -> None:
        """`granted` is the number of credits of the first stage; without one nothing enters either."""
        self._width = width
        self._credits = granted
        self._flying = 0
        self._stale = 0

    @property
    def open(self) -> bool:
        """Whether a turn is free."""
        return self._flying < self._width

    @property
    def may_send(self) -> bool:
        return self.open and self._credits > 0

    def grant(self) -> None:
        """A credit of the first stage has come."""
        self._credits += 1

    def send(self) -> None:
        """A segment enters."""
        self._credits -= 1
        self._flying += 1

    def take_back(self) -> bool:
        """A segment has come back; says whether it belongs to this round."""
        if self._stale:
            self._stale -= 1
            return False
        self._flying -= 1
        return True

    def flush(self) -> None:
        """Everything under way is dead: a new round."""
        self._stale += self._flying
        self._flying = 0
