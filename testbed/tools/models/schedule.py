"""Learning-rate schedule over wall-clock time, so that a run ends when its budget does, and its options."""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path

DTYPES = ("bfloat16", "float32")
DTYPE_HELP = "of products; bfloat16 is slow on a processor without AVX-512 BF16"


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


def add_training_options(
    parser: ArgumentParser, *, minutes: float, learning_rate: float, threads: int
) -> None:
    """Add the options that every training of a model has, with these defaults."""
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the model")
    parser.add_argument("--minutes", type=float, default=minutes, help="wall-clock, earlier runs included")
    parser.add_argument("--learning-rate", type=float, default=learning_rate, help="peak")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    parser.add_argument(
        "--init", type=Path, help="folder of a trained model to begin with, in place of random weights"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help=DTYPE_HELP)
