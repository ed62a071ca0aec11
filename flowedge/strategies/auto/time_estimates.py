"""The time of a drafter's forward, and the work that the first stage still has."""

from __future__ import annotations

_FADE = 0.9  # weight of the former estimate at each forward


class DraftTime:
    """A moving mean of the seconds of a forward of the drafter; 0 while none is known."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds == 0 else _FADE * self.seconds + (1 - _FADE) * seconds


class FirstStageBacklog:
    """The work in seconds that the first stage still has while an empty pipeline fills.

    No segment returns in that time, and the draft node drafts without a break: the time of its forwards is
    the time that passes. So a strategy needs no clock to know when the first stage is free.
    """

    def __init__(self) -> None:
        self._filling = True
        self._seconds = 0.0

    def pipeline_emptied(self) -> None:
        """Begin to fill: everything in flight is dead."""
        self._filling, self._seconds = True, 0.0

    def pipeline_filled(self) -> None:
        """End the filling: a segment has returned and another lives, so one enters as one returns."""
        self._filling = False

    def add_segment(self, seconds: float) -> None:
        """Add a segment on which the stage works for this time."""
        self._seconds += seconds

    def pass_time(self, seconds: float) -> None:
        """Take off the time of a forward of the drafter."""
        self._seconds = max(self._seconds - seconds, 0.0)

    def exceeds(self, seconds: float) -> bool:
        """Return whether the stage is known to work for longer than this."""
        return self._filling and self._seconds > seconds
