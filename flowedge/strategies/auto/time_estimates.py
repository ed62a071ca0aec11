"""What the draft node's lane takes, and when the first stage is free, by the lane's own time."""

from __future__ import annotations

_FADE = 0.9  # weight of what came before, at each forward


class DraftTime:
    """A moving mean of the seconds of a forward of the drafter; 0 while none is known."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Take in a forward."""
        self.seconds = seconds if self.seconds == 0 else _FADE * self.seconds + (1 - _FADE) * seconds


class FirstStage:
    """What the first stage still has to do while a pipeline that has run empty is filled.

    Nothing comes back then, and the lane drafts without a break: the time of its forwards is the time that
    passes. A strategy needs no clock for it.
    """

    def __init__(self) -> None:
        self._filling = True
        self._left = 0.0

    def empty(self) -> None:
        """Everything under way is dead."""
        self._filling, self._left = True, 0.0

    def flow(self) -> None:
        """A segment has come back and another lives: one goes in as one comes out."""
        self._filling = False

    def take(self, seconds: float) -> None:
        """A segment goes in that the stage works on for so long."""
        self._left += seconds

    def drafted(self, seconds: float) -> None:
        """A forward has passed."""
        self._left = max(self._left - seconds, 0.0)

    def is_busy_for(self, seconds: float) -> bool:
        """Whether the stage is known to work on for longer than this."""
        return self._filling and self._left > seconds
