"""The times of paced jobs, which each agent writes to a file, and how well the schedule was kept."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_RECORD = struct.Struct("<4d")


@dataclass(frozen=True)
class JobTiming:
    """How one job of an emulated device kept its time slot, in seconds.

    Attributes:
        slot_s: length of the slot; compute_s: time the real computation took.
        overrun_s: how long after the end of the slot the computation ended; 0 if it ended in time.
        late_s: how long after the end of the slot the result was taken on.
    """

    slot_s: float
    compute_s: float
    overrun_s: float
    late_s: float


class TimingLog:
    """An agent's file of job times, opened for writing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def add(self, timing: JobTiming) -> None:
        """Append the times of one job."""
        os.write(self._file, _RECORD.pack(timing.slot_s, timing.compute_s, timing.overrun_s, timing.late_s))


class TimingReader:
    """An agent's file of job times, read by the benchmark while the agent writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[JobTiming]:
        """Return the jobs that were added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = len(data) // _RECORD.size * _RECORD.size
        self._read += whole
        return [JobTiming(*record) for record in _RECORD.iter_unpack(data[:whole])]


@dataclass(frozen=True)
class ScheduleAccuracy:
    """How well the schedule was kept, over all jobs that take time.

    Attributes:
        jobs: number of jobs; overruns: number of jobs whose real computation ended after their slot.
        worst_ratio: the longest job's time over its slot; 1 if no job overran.
        compute_share: seconds of real computation over seconds of slots.
        late_ms: mean delay with which results were taken on; worst_late_ms: the longest delay.
    """

    jobs: int
    overruns: int
    overrun_share: float
    worst_ratio: float
    compute_share: float
    late_ms: float
    worst_late_ms: float

    @classmethod
    def of(cls, timings: Sequence[JobTiming]) -> ScheduleAccuracy:
        """Return the accuracy over these jobs."""
        jobs, slots_s = len(timings), sum(timing.slot_s for timing in timings)
        overruns = [timing for timing in timings if timing.overrun_s > 0]
        return cls(
            jobs=jobs,
            overruns=len(overruns),
            overrun_share=len(overruns) / jobs if jobs else 0.0,
            worst_ratio=max(
                (1 + timing.overrun_s / timing.slot_s for timing in overruns if timing.slot_s), default=1.0
            ),
            compute_share=sum(timing.compute_s for timing in timings) / slots_s if slots_s else 0.0,
            late_ms=1e3 * sum(timing.late_s for timing in timings) / jobs if jobs else 0.0,
            worst_late_ms=1e3 * max((timing.late_s for timing in timings), default=0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """Return a sentence for the user."""
        return (
            f"real computation overran the emulated device's time in {self.overruns} of {self.jobs} jobs "
            f"({self.overrun_share:.2%}, at worst {self.worst_ratio:.2f} times the slot); it took "
            f"{self.compute_share:.1%} of the time there was. Results were taken on {self.late_ms:.2f} ms "
            f"late on average, {self.worst_late_ms:.1f} ms at worst"
        )
