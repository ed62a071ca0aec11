"""The interface by which a live device's work is counted."""

from __future__ import annotations

from flowedge.core.request import DecodeCounters
from flowedge.engine.work_counts import WorkCounts


class LiveObserver:
    """An observer of a live device's work, called on the event loop; this class ignores all calls.

    Times are in seconds. A `link` is "in_band" or "express".
    """

    def counted(self, counts: WorkCounts) -> None:
        """Sessions have begun or ended, or a stage has worked on segments and rows."""

    def computed(self, activity: str, seconds: float, rows: int) -> None:
        """A job has ended; `activity` is a word of engine/activity.py."""

    def transferred(self, seconds: float) -> None:
        """The transport took an in-band message `seconds` after it was handed over."""

    def sent(self, link: str, num_bytes: int) -> None:
        """A frame was sent on a link."""

    def received(self, link: str, num_bytes: int) -> None:
        """A frame has come on a link."""

    def decoded(self, counters: DecodeCounters) -> None:
        """A request has ended well on the draft node."""


UNOBSERVED = LiveObserver()
