"""The trace of a request: what every device and link did, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flowedge.core.messages import Message, Prune, session_messages
from flowedge.engine.activity import TRANSFER, job_activity, job_rows, message_rows
from flowedge.engine.jobs import DraftJob, StageJob, session_jobs
from flowedge.planning.virtual_pipeline import DRAFT_NODE, Costs, VirtualObserver, device_of, number_of

NO_SESSION = -1  # the session of what was done for no single request


def place_name(place: int) -> str:
    """Return the name of the device at a place: d0, v1, v2, ..., and m1, ... for middle models."""
    if place < DRAFT_NODE:
        return f"m{number_of(place)}"
    return "d0" if place == DRAFT_NODE else f"v{place + 1}"


def place_at(name: str) -> int:
    """Return the place of the device with this name."""
    number = int(name[1:])
    return {"d": DRAFT_NODE, "v": number - 1, "m": device_of(number)}[name[0]]


@dataclass(frozen=True)
class Interval:
    """A span of time, in seconds, in which a device did one thing.

    Attributes:
        place: as in planning/virtual_pipeline.py; that of the sender for a transfer.
        kind: a word of flowedge/engine/activity.py.
        rows: rows computed or sent; 0 for a transfer of no rows.
        session: under a load, the number of the request that it was done for.
    """

    place: int
    kind: str
    start: float
    end: float
    rows: int
    session: int = NO_SESSION


@dataclass(frozen=True)
class PruneMark:
    """The arrival of an express prune at a stage, at `time` seconds."""

    stage: int
    time: float


@dataclass
class Trace:
    """Everything that happened during one request, which arrived at time 0.

    Attributes:
        uncertainty_s: largest difference that may remain between the matched clocks of two devices.
    """

    intervals: list[Interval] = field(default_factory=list)
    prunes: list[PruneMark] = field(default_factory=list)
    express_bytes: int = 0
    uncertainty_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Trace:
        """Return the trace that `to_dict` turned into this content, after JSON."""
        values = dict(content)
        values["intervals"] = [Interval(**interval) for interval in values["intervals"]]
        values["prunes"] = [PruneMark(**mark) for mark in values["prunes"]]
        return cls(**values)


class TraceObserver(VirtualObserver):
    """An observer of a virtual pipeline that records everything in a trace."""

    def __init__(self, costs: Costs) -> None:
        self.trace = Trace()
        self._costs = costs

    def number_of(self, session: str) -> int:  # noqa: ARG002
        """Return the number of a session's request under a load, or NO_SESSION."""
        return NO_SESSION

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        if end > start:
            kind, _ = job_activity(job)
            for part in session_jobs(job):
                session, rows = self.number_of(part.session), job_rows(part)
                self.trace.intervals.append(Interval(place, kind, start, end, rows, session))

    def sent(self, sender: int, message: Message, start: float, left: float, arrives: float) -> None:  # noqa: ARG002
        for part in session_messages(message):
            session, rows = self.number_of(getattr(part, "session", "")), message_rows(part)
            self.trace.intervals.append(Interval(sender, TRANSFER, start, left, rows, session))

    def expressed(self, stage: int, message: Message, start: float, arrives: float) -> None:  # noqa: ARG002
        self.trace.express_bytes += self._costs.message_bytes(DRAFT_NODE, message)
        if isinstance(message, Prune):
            self.trace.prunes.append(PruneMark(stage, arrives))


@dataclass(frozen=True)
class Use:
    """How a device spent a span of time: shares of computing, of sending alone, and of neither."""

    busy: float
    transferring: float
    waiting: float


def use_between(
    intervals: Iterable[Interval], places: Sequence[int], start: float, end: float
) -> dict[int, Use]:
    """Return how the device at each place spent the time from `start` to `end`."""
    computing: dict[int, list[tuple[float, float]]] = {place: [] for place in places}
    either: dict[int, list[tuple[float, float]]] = {place: [] for place in places}
    for interval in intervals:
        span = (max(interval.start, start), min(interval.end, end))
        if span[0] < span[1]:
            either[interval.place].append(span)
            if interval.kind != TRANSFER:
                computing[interval.place].append(span)
    total = end - start
    uses: dict[int, Use] = {}
    for place, spans in computing.items():
        busy = covered(spans) / total if total > 0 else 0.0
        active = covered(either[place]) / total if total > 0 else 0.0
        uses[place] = Use(busy, max(active - busy, 0.0), max(1 - active, 0.0))
    return uses


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of time spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
