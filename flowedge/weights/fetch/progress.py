"""How far fetching is: bytes, rate and time left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 5.0  # the rate is that of the last seconds


@dataclass(frozen=True)
class FetchProgress:
    """Bytes that are here of those wanted; the rate in bytes a second.

    Attributes:
        left_s: seconds until all is here at this rate; None while there is none.
    """

    done: int
    total: int
    rate: float
    left_s: float | None


class RateMeter:
    """Rates of the last seconds; the caller tells the time."""

    def __init__(self, total: int, done: int, now_s: float) -> None:
        """done: what was here already, which counts for no rate."""
        self.total, self.done = total, done
        self._marks: deque[tuple[float, int]] = deque([(now_s, done)])

    def add(self, count: int) -> None:
        """So many bytes came; less than 0 when some were thrown away."""
        self.done += count

    def progress(self, now_s: float) -> FetchProgress:
        """As it is now."""
        self._marks.append((now_s, self.done))
        while len(self._marks) > 2 and now_s - self._marks[0][0] > WINDOW_S:
            self._marks.popleft()
        began_s, began = self._marks[0]
        elapsed = now_s - began_s
        rate = max(0.0, (self.done - began) / elapsed) if elapsed > 0 else 0.0
        left = self.total - self.done
        return FetchProgress(self.done, self.total, rate, left / rate if rate > 0 else None if left else 0.0)


def in_words(progress: FetchProgress) -> str:
    """For a line of text."""
    left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
    return f"{mib(progress.done)} of {mib(progress.total)}, {mib(int(progress.rate))}/s{left}"


def mib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**20:.1f} MiB"
