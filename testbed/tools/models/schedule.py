"""Learning-rate schedule over wall-clock time, so that a run ends when its budget does."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass
class TimedSchedule:
    """A linear warm-up and a cosine to `floor` over `minutes`; earlier runs used `spent_s` of it."""

    minutes: float
    spent_s: float = 0.0
    warmup: float = 0.02  # share of the budget
    floor: float = 0.02  # share of the peak learning rate
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return self.spent_s + time.monotonic() - self.started

    @property
    def progress(self) -> float:
        """Return the share of the budget that is used, 0 to 1."""
        return min(1.0, self.elapsed_s / (60 * self.minutes))

    @property
    def scale(self) -> float:
        """Return the present factor on the peak learning rate."""
        progress = self.progress
        if progress < self.warmup:
            return max(progress / self.warmup, 1e-3)
        angle = math.pi * (progress - self.warmup) / (1 - self.warmup)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(angle))
