"""How many segments of a session may be on their way to the first stage, or wait in front of it."""

from __future__ import annotations

from collections import deque

from flowedge.core.messages import StageTime

_MOST = 64
_FADE = 0.9


class SendWindow:
    """The number of segments without a credit yet, so that about one waits while the first stage computes.

    A credit comes back after two crossings of the first link. On a LAN they are short beside a forward of the
    first stage, and the window is one segment. Over a link of 20 ms a stage that takes 5 ms would be idle for
    most of the time: there as many segments more are under way as it computes in the time of the crossings.

    Attributes:
        segments: the present window, 1 or more.
    """

    def __init__(self) -> None:
        self.segments = 1
        self._uncredited: deque[tuple[int, float]] = deque()  # number and time of sending
        self._delays: dict[int, float] = {}  # until the credit came, of segments in flight
        self._crossings: float | None = None
        self._stage_s: float | None = None

    @property
    def uncredited(self) -> int:
        """Number of segments sent for which no credit has come."""
        return len(self._uncredited)

    def send(self, number: int, now: float) -> None:
        self._uncredited.append((number, now))

    def credit(self, now: float) -> None:
        """Take in a credit; one that no segment waits for, of an opening that failed, counts for nothing."""
        if self._uncredited:
            number, sent_at = self._uncredited.popleft()
            self._delays[number] = now - sent_at

    def take_back(self, number: int, first_stage: StageTime | None) -> None:
        """Take in what the first stage took for a segment that has returned."""
        delay = self._delays.pop(number, None)
        if first_stage is None or delay is None or not first_stage.rows or first_stage.seconds <= 0:
            return
        crossings = max(delay - first_stage.waited, 0.0)
        self._crossings = _mixed(self._crossings, crossings)
        # The rows of a prompt take long, so that a shorter time counts at once.
        self._stage_s = min(_mixed(self._stage_s, first_stage.seconds), first_stage.seconds)
        self.segments = 1 + int(min(self._crossings / self._stage_s, _MOST - 1))


def _mixed(mean: float | None, value: float) -> float:
    return value if mean is None else _FADE * mean + (1 - _FADE) * value
