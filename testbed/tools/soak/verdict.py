"""Whether a process stays as it is: the slopes of what it held, and the noise that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from flowedge.core.errors import BadRequestError
from testbed.tools.slopes import slope
from testbed.tools.soak.watching import Held

FLAT_MIB_PER_HOUR = 1.0
FEWEST_SAMPLES = 12
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Trend:
    """How a figure of a process went.

    Attributes:
        per_hour: how much is added in an hour, by the median slope between two samples.
        rise: how much that is over the time that was measured.
        noise: how far the samples lie apart once the rise is taken off: the 10th to the 90th percentile.
    """

    per_hour: float
    rise: float
    noise: float

    @property
    def within_noise(self) -> bool:
        return abs(self.rise) <= self.noise


@dataclass(frozen=True)
class ProcessVerdict:
    """What became of one process after the settling time.

    Attributes:
        rss, pss: in MiB.
        faults: why it is not flat; none where it is.
    """

    name: str
    rss: Trend
    pss: Trend
    descriptors: Trend
    threads: Trend
    faults: tuple[str, ...]


def trend(samples: Sequence[Held], figure: Callable[[Held], float]) -> Trend:
    """Return how a figure went. Example: 100, 101 and 102 MiB, half an hour apart, are 2 MiB an hour."""
    points = [(each.at / _HOUR_S, figure(each)) for each in samples]
    per_hour = slope(points)
    rest = quantiles((value - per_hour * hour for hour, value in points), n=10)
    return Trend(per_hour, per_hour * (points[-1][0] - points[0][0]), rest[-1] - rest[0])


def judge(name: str, samples: Sequence[Held], settle_s: float) -> ProcessVerdict:
    """Judge a process by its samples after the settling time.

    The gateway is flat if its RSS gains at most FLAT_MIB_PER_HOUR. An agent's memory goes up and down with
    its sessions, so it is flat if what its RSS gains is no more than that noise. Descriptors and threads of
    either may rise by no more than their noise, or by 1. PSS is not judged, because other programs of the
    machine change it.

    Raises:
        BadRequestError: when there are too few samples.
    """
    settled = [each for each in samples if each.at >= settle_s]
    if len(settled) < FEWEST_SAMPLES:
        raise BadRequestError(
            f"{len(settled)} samples of {name} after {settle_s:g} s; {FEWEST_SAMPLES} are needed: "
            "give the soak more time"
        )
    rss, pss = trend(settled, lambda held: held.rss), trend(settled, lambda held: held.pss)
    descriptors = trend(settled, lambda held: held.descriptors)
    threads = trend(settled, lambda held: held.threads)
    faults = []
    if rss.per_hour > FLAT_MIB_PER_HOUR and (name == "gateway" or not rss.within_noise):
        faults.append(f"it grows by {rss.per_hour:.1f} MiB an hour")
    for kind, counts in (("descriptors", descriptors), ("threads", threads)):
        if counts.rise > max(1.0, counts.noise):
            faults.append(f"{kind} grow by {counts.per_hour:.1f} an hour")
    return ProcessVerdict(name, rss, pss, descriptors, threads, tuple(faults))


def verdict_table(verdicts: Sequence[ProcessVerdict], samples: dict[str, list[Held]], settle_s: float) -> str:
    """Return a Markdown table of the verdicts, with RSS along the whole time."""
    rows = [
        "| process | RSS MiB at 0, 25, 50, 75, 100 % | RSS MiB/h | noise | PSS MiB/h | PSS MiB "
        "| descriptors | threads | verdict |",
        "|---|---|---:|---:|---:|---:|---|---|---|",
    ]
    for verdict in verdicts:
        held = samples[verdict.name]
        along = " ".join(f"{held[round(part * (len(held) - 1) / 4)].rss:.1f}" for part in range(5))
        settled = [each for each in held if each.at >= settle_s]
        rows.append(
            f"| {verdict.name} | {along} | {verdict.rss.per_hour:+.1f} | {verdict.rss.noise:.1f} "
            f"| {verdict.pss.per_hour:+.1f} | {median(each.pss for each in settled):.1f} "
            f"| {_span(each.descriptors for each in settled)} | {_span(each.threads for each in settled)} "
            f"| {'; '.join(verdict.faults) or 'flat'} |"
        )
    return "\n".join(rows)


def _span(counts: Iterable[int]) -> str:
    least, *_, most = sorted(counts)
    return f"{least}-{most}"
