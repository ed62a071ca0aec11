"""Holding real work to the time that an emulated device takes: arithmetic, and what a profile has to say.

Times are seconds on one monotonic clock. The schedule is absolute: lateness shifts nothing that comes after.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from flowedge.core.messages import Message
from flowedge.engine.jobs import DraftJob, Forward, StageJob
from flowedge.live.compute_thread import Span


class Way(Enum):
    """How a message came to a device, which says whose link it took."""

    IN_BAND = "in-band"  # from the device before
    EXPRESS = "express"  # from the draft node
    REPLY = "reply"  # back from the device after, such as a credit


class Schedule:
    """The slots of whatever does one thing at a time."""

    def __init__(self) -> None:
        self._free = float("-inf")

    def slot(self, ready: float, cost: float) -> Span:
        """The next slot: `cost` long, from the end of the one before or from `ready`, whichever is later."""
        start = max(ready, self._free)
        self._free = start + cost
        return Span(start, self._free)

    def end_early(self, slot: Span, end: float) -> Span:
        """The latest slot with another end, which must not be later than its own."""
        self._free = end
        return Span(slot.start, end)


def abort_time(start: float, now: float, layer_s: float) -> float:
    """When a forward that began at `start` stops if it is aborted `now`: at the end of its current layer."""
    if layer_s <= 0:
        return start
    return start + (int((now - start) / layer_s) + 1) * layer_s


@dataclass(frozen=True)
class JobTiming:
    """What became of a job of the lane, in seconds.

    Attributes:
        slot_s: the time it was given; compute_s: the time its real computation took.
        overrun_s: how long after the end of its slot the computation ended, 0 when it was in time.
        late_s: how long after that end its result was taken on.
    """

    slot_s: float
    compute_s: float
    overrun_s: float
    late_s: float


class EmulatedDevice(Protocol):
    """What one emulated device takes for its work, and its links for its messages.

    Attributes:
        row_bytes: of each row of hidden states that it sends on, which is padded to them; 0 if it sends none.
        shaped: whether the network takes the time of a transfer itself; otherwise the sender waits for it.
    """

    row_bytes: int
    shaped: bool

    def stage_job(self, job: StageJob) -> float:
        """Compute time of a job, were this device a stage."""

    def layer(self, job: Forward) -> float:
        """Time between two places where a computation can be aborted."""

    def draft_job(self, job: DraftJob) -> float:
        """Compute time of a job, were this device the draft node."""

    def transfer(self, message: Message) -> float:
        """How long an in-band message occupies the link out of this device."""

    def latency(self, way: Way) -> float:
        """How long after it has come a message arrives."""

    def ran(self, timing: JobTiming) -> None:
        """A job that takes time has ended."""
