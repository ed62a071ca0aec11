"""Progress of fetching: bytes, rate and remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flowedge.v1 import agent_pb2 as pb

WINDOW_S = 5.0  # the rate is measured over this time


@dataclass(frozen=True)
class FetchProgress:
    """How many bytes are done.

    Attributes:
        rate: bytes per second.
        left_s: remaining seconds at this rate, None while it is unknown.
    """

    done: int
    total: int
    rate: float = 0.0
    left_s: float | None = None

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        return f"{mib(self.done)} of {mib(self.total)}, {mib(int(self.rate))}/s{left}"

    @classmethod
    def from_proto(cls, transfer: pb.Transfer) -> FetchProgress:
        left_s = transfer.left_s if transfer.left_s >= 0 else None
        return cls(transfer.done_bytes, transfer.total_bytes, transfer.bytes_per_s, left_s)

    def to_proto(self) -> pb.Transfer:
        return pb.Transfer(
            done_bytes=self.done,
            total_bytes=self.total,
            bytes_per_s=self.rate,
            left_s=-1.0 if self.left_s is None else self.left_s,
        )


OnTransfer = Callable[[str, FetchProgress], None]
"""Called with the name of a device or of a step, and with how many bytes of weights are done."""


class RateMeter:
    """Measures the rate of the last WINDOW_S seconds."""

    def __init__(self, total: int, done: int, now_s: float) -> None:
        """done: bytes that are there from the beginning, which do not count for the rate."""
        self.total, self.done = total, done
        self._marks: deque[tuple[float, int]] = deque([(now_s, done)])

    def add(self, count: int) -> None:
        """Add received bytes; a negative number if received bytes were deleted."""
        self.done += count

    def progress(self, now_s: float) -> FetchProgress:
        self._marks.append((now_s, self.done))
        while len(self._marks) > 2 and now_s - self._marks[0][0] > WINDOW_S:
            self._marks.popleft()
        began_s, began = self._marks[0]
        elapsed = now_s - began_s
        rate = max(0.0, (self.done - began) / elapsed) if elapsed > 0 else 0.0
        left = self.total - self.done
        return FetchProgress(self.done, self.total, rate, left / rate if rate > 0 else None if left else 0.0)


def mib(count: int) -> str:
    """A number of bytes, to be read by people."""
    return f"{count / 2**20:.1f} MiB"
