"""How the devices of a pipeline were used under a load, and how their work was shared among sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flowedge.engine.activity import COMPUTING, FORWARD, PREFILL
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from flowedge_testbed.trace import Interval, covered, place_name

Span: TypeAlias = tuple[float, float]  # seconds


@dataclass(frozen=True)
class PipelineUse:
    """What the devices did during a span of time. Shares are of the span.

    Attributes:
        busy: share in which each device computed, by its name.
        draft_node_alone: share in which the draft node computed and no stage did.
        idle_beside_draft_node: share in which a stage was idle while the draft node computed; the mean of
            the stages.
        all_idle: share in which no device computed: messages were under way.
        rows, sessions: forwards of the stages, by their number of rows and of sessions, as pairs of the
            number and the count. Aborted forwards are not among them.
    """

    busy: dict[str, float]
    draft_node_alone: float
    idle_beside_draft_node: float
    all_idle: float
    rows: tuple[tuple[int, int], ...]
    sessions: tuple[tuple[int, int], ...]

    @property
    def limit(self) -> str:
        """The name of the device that computed for the longest time."""
        return max(self.busy, key=lambda device: self.busy[device])

    @classmethod
    def between(cls, intervals: Sequence[Interval], places: Sequence[int], span: Span) -> PipelineUse:
        """Return the use of the devices at `places` during `span`."""
        start, end = span
        total = max(end - start, 1e-12)
        spans: dict[int, list[Span]] = {place: [] for place in places}
        for interval in intervals:
            if interval.kind in COMPUTING and interval.place in spans:
                part = (max(interval.start, start), min(interval.end, end))
                if part[0] < part[1]:
                    spans[interval.place].append(part)
        own = spans[DRAFT_NODE]
        stages = [spans[place] for place in places if place >= 0]
        of_stages = [part for parts in stages for part in parts]
        busy_stages, anyone = covered(of_stages), covered([*of_stages, *own])
        idle = [covered([*own, *parts]) - covered(parts) for parts in stages]
        forwards = [
            [each for each in group if start <= each.start < end] for group in stage_forwards(intervals)
        ]
        counted = [group for group in forwards if group]
        return cls(
            busy={place_name(place): covered(parts) / total for place, parts in spans.items()},
            draft_node_alone=(anyone - busy_stages) / total,
            idle_beside_draft_node=sum(idle) / len(stages) / total,
            all_idle=max(total - anyone, 0.0) / total,
            rows=_counts(sum(each.rows for each in group) for group in counted),
            sessions=_counts(len(group) for group in counted),
        )


def stage_forwards(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """Return the forwards of the stages that were completed, by their beginning.

    Forwards of several sessions that a stage computed in one are together.
    """
    groups: dict[tuple[float, float, int], list[Interval]] = {}
    for interval in intervals:
        if interval.place >= 0 and interval.kind in (FORWARD, PREFILL):
            groups.setdefault((interval.start, interval.end, interval.place), []).append(interval)
    return [groups[key] for key in sorted(groups)]


def row_shares(intervals: Iterable[Interval], decoding: Mapping[int, Span]) -> dict[int, float]:
    """Return the rows that the stages computed for each session, over those of an equal share.

    The equal share of a forward of draft and plain rows is its rows over the number of sessions that decode
    when it begins. Prefill rows, and sessions that decode for no time, are left out.

    Args:
        decoding: when each session decoded: from its first token to its last.
    """
    own: Counter[int] = Counter()
    equal = dict.fromkeys(decoding, 0.0)
    begun = sorted((span[0], session) for session, span in decoding.items() if span[1] > span[0])
    starts = [start for start, _ in begun]
    active: set[int] = set()
    joined = 0
    for group in stage_forwards(each for each in intervals if each.kind == FORWARD):
        start = group[0].start
        here = bisect_right(starts, start)
        active.update(session for _, session in begun[joined:here])
        joined = max(joined, here)
        active = {session for session in active if decoding[session][1] > start}
        taking = [each for each in group if each.session in active]
        if not taking:
            continue
        for each in taking:
            own[each.session] += each.rows
        share = sum(each.rows for each in taking) / len(active)
        for session in active:
            equal[session] += share
    return {session: own[session] / rows for session, rows in equal.items() if rows > 0}


def quantile_of(counts: Iterable[Sequence[int]], share: float) -> float:
    """Return the least value that a `share` of the counted values does not exceed; 0 if there are none.

    counts: pairs of a value and how often it was seen, in ascending order of the values.
    """
    pairs = list(counts)
    wanted, reached = share * sum(count for _, count in pairs), 0
    for value, count in pairs:
        reached += count
        if reached >= wanted - 1e-9:
            return float(value)
    return 0.0


def mean_of_counts(counts: Iterable[Sequence[int]]) -> float:
    """Return the mean of counted values; 0 if there are none."""
    pairs = list(counts)
    seen = sum(count for _, count in pairs)
    return sum(value * count for value, count in pairs) / seen if seen else 0.0


def _counts(values: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(values).items()))
