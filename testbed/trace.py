"""What every device and link did, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowedge.messages import Message, Prune, Segment
from flowedge.runtime.jobs import DraftJob, ExtendDraft, Forward, GrowDraft, StageJob, Verify
from flowedge.runtime.virtual import DRAFT_NODE, Costs


@dataclass(frozen=True)
class Interval:
    """A stretch of time, in seconds, in which a device did something.

    Attributes:
        place: DRAFT_NODE, or the stage counted from 0; for a transfer, its sender.
        kind: "draft", "verify", "prefill", "forward", "aborted" (a forward stopped between layers)
            or "transfer".
        rows: rows computed or sent; 0 for a transfer of no rows.
    """

    place: int
    kind: str
    start: float
    end: float
    rows: int


@dataclass(frozen=True)
class PruneMark:
    """A prune arrived at a stage on the express lane, at `time` seconds."""

    stage: int
    time: float


@dataclass
class Trace:
    """An Observer that keeps everything (see runtime/virtual.py)."""

    costs: Costs
    intervals: list[Interval] = field(default_factory=list)
    prunes: list[PruneMark] = field(default_factory=list)
    express_bytes: int = 0

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        if end > start:
            kind, rows = _described(job)
            self.intervals.append(Interval(place, kind, start, end, rows))

    def sent(self, sender: int, message: Message, start: float, left: float, arrives: float) -> None:  # noqa: ARG002
        rows = message.num_rows if isinstance(message, Segment) else 0
        self.intervals.append(Interval(sender, "transfer", start, left, rows))

    def expressed(self, stage: int, message: Message, start: float, arrives: float) -> None:  # noqa: ARG002
        self.express_bytes += self.costs.message_bytes(message)
        if isinstance(message, Prune):
            self.prunes.append(PruneMark(stage, arrives))


def _described(job: StageJob | DraftJob) -> tuple[str, int]:
    match job:
        case Forward(dead=True):
            return "aborted", job.num_rows
        case Forward():
            return ("prefill" if job.committed and job.num_rows > 1 else "forward"), job.num_rows
        case GrowDraft():
            return "draft", len(job.nodes)
        case ExtendDraft():
            return "draft", len(job.next_tokens)
        case Verify():
            return "verify", len(job.positions)
        case _:
            return "cache", 0


@dataclass(frozen=True)
class Use:
    """Shares of a stretch of time: computing; sending while not computing; neither."""

    busy: float
    transferring: float
    waiting: float


def use_between(intervals: Iterable[Interval], places: int, start: float, end: float) -> dict[int, Use]:
    """How each device spent the time from `start` to `end`; the draft node and stages 0 .. places - 1."""
    computing: dict[int, list[tuple[float, float]]] = {place: [] for place in range(DRAFT_NODE, places)}
    either: dict[int, list[tuple[float, float]]] = {place: [] for place in range(DRAFT_NODE, places)}
    for interval in intervals:
        stretch = (max(interval.start, start), min(interval.end, end))
        if stretch[0] < stretch[1]:
            either[interval.place].append(stretch)
            if interval.kind != "transfer":
                computing[interval.place].append(stretch)
    total = end - start
    uses: dict[int, Use] = {}
    for place, stretches in computing.items():
        busy = covered(stretches) / total if total > 0 else 0.0
        active = covered(either[place]) / total if total > 0 else 0.0
        uses[place] = Use(busy, max(active - busy, 0.0), max(1 - active, 0.0))
    return uses


def covered(stretches: Iterable[tuple[float, float]]) -> float:
    """Length of the union of stretches of time."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(stretches):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
