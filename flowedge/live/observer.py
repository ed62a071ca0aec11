"""Who counts what a live device does: called on the event loop, next to where it happens."""

from __future__ import annotations

from typing import Protocol

from flowedge.core.request import DecodeCounters
from flowedge.engine.work_counts import WorkCounts


class LiveObserver(Protocol):
    """Hears of what was done; it raises nothing and changes nothing. Times are in seconds."""

    def counted(self, counts: WorkCounts) -> None:
        """Sessions have begun or ended, or segments and rows have been seen to."""

    def computed(self, activity: str, seconds: float, rows: int) -> None:
        """A job of the compute lane has ended; `activity` is a word of engine/activity.py."""

    def transferred(self, seconds: float) -> None:
        """The transport has taken an in-band message, so long after it was handed over."""

    def sent(self, lane: str, num_bytes: int) -> None:
        """A frame was sent on a link; `lane` is "in_band" or "express"."""

    def received(self, lane: str, num_bytes: int) -> None:
        """A frame has come on a link."""

    def decoded(self, counters: DecodeCounters) -> None:
        """A request has ended well on the draft node."""


class NoObserver:
    """An Observer that counts nothing."""

    def counted(self, counts: WorkCounts) -> None: ...

    def computed(self, activity: str, seconds: float, rows: int) -> None: ...

    def transferred(self, seconds: float) -> None: ...

    def sent(self, lane: str, num_bytes: int) -> None: ...

    def received(self, lane: str, num_bytes: int) -> None: ...

    def decoded(self, counters: DecodeCounters) -> None: ...


UNOBSERVED = NoObserver()
