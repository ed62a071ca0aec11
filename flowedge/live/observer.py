"""The interface by which a live device's work is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flowedge.core.messages import Message
from flowedge.core.request import DecodeCounters
from flowedge.engine.work_counts import WorkCounts
from flowedge.live.compute_thread import Span

CountBytes: TypeAlias = Callable[[int], None]


def ignore_bytes(num_bytes: int) -> None:
    """Count nothing."""


class LiveObserver:
    """An observer of a live device's work, called in any thread; this class ignores all calls.

    Times are in seconds. A `link` is "in_band" or "express".
    """

    def counted(self, counts: WorkCounts) -> None:
        """Sessions have begun or ended, or a stage has worked on segments and rows."""

    def admitted(self, waited_s: float) -> None:
        """A draft node has opened a request that waited for so long."""

    def computed(self, activity: str, span: Span, rows: int) -> None:
        """A job has ended, and what follows from it is done; `activity` is a word of engine/activity.py."""

    def transferred(self, message: Message, span: Span) -> None:
        """The transport has taken an in-band message, which was handed over at the span's start."""

    def of_link(self, link: str) -> tuple[CountBytes, CountBytes]:  # noqa: ARG002
        """Return the counters of bytes sent and of bytes received on links of a kind."""
        return ignore_bytes, ignore_bytes

    def lost(self, state: str) -> None:
        """A pipeline has lost a device; `state` is the word for the device's state."""

    def decoded(self, counters: DecodeCounters) -> None:
        """A request has ended well on the draft node."""


UNOBSERVED = LiveObserver()
