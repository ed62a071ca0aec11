"""The most tokens/s that any schedule could reach with the rows that a run had in flight.

While one segment travels through the pipeline, only tokens whose rows are in flight can come out: the root's
draw, and one for each row below the root on the true path. So tokens/s <= (1 + C(M)) / T_lat. C(M) is in
tree_coverage.py and T_lat in empty_pipeline.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.planning.choices import forward_of, states_of
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import DRAFT_NODE
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.record import RunRecord
from flowedge_testbed.replay.path_coverage import UNDRAFTED, TreeCoverage
from flowedge_testbed.runs import Run, Task


def trip_s(costs: ProfileCosts, rows: float, cached: int) -> float:
    """Return the seconds from when a segment leaves the draft node until its draws are known.

    The time is that of every stage and link once, then the verification. Jitter counts with its mean.

    Args:
        rows: live rows of the segment, 1 or more; the time is interpolated between whole numbers.
        cached: rows in the stages' caches.
    """
    wanted = max(rows, 1.0)
    whole = math.floor(wanted)
    below = _crossing_s(costs, whole, cached)
    if wanted == whole:
        return below
    return below + (wanted - whole) * (_crossing_s(costs, whole + 1, cached) - below)


def _crossing_s(costs: ProfileCosts, rows: int, cached: int) -> float:
    emulation = costs.pipeline
    hidden, forward = states_of(rows, cached), forward_of(rows, cached)
    draft = replace(hidden, payload=np.zeros(rows, dtype=np.int32))
    # A last stage that draws returns the root's row at least.
    returned = states_of(1, cached) if emulation.verification == LAST_STAGE else hidden
    *between, last = range(emulation.num_stages)
    return (
        costs.transfer(DRAFT_NODE, draft)
        + sum(costs.stage_job(stage, forward) + costs.transfer(stage, hidden) for stage in between)
        + costs.stage_job(last, forward)
        + costs.transfer(last, returned)
        + sum(link.latency_ms + link.jitter_ms / 2 for link in emulation.links) / 1e3
        + costs.verify(rows)
    )


CoverageOf = Callable[[Task, Run], TreeCoverage]


@dataclass(frozen=True)
class RunBounds:
    """The bounds of one run.

    Attributes:
        trip_s: T_lat of a segment with the mean number of live rows of the run's segments.
        sent_tokens_per_s: the bound if M counts all rows as sent.
        alive_tokens_per_s: the bound if M counts the rows that are not pruned yet.
    """

    trip_s: float
    sent_tokens_per_s: float
    alive_tokens_per_s: float


def is_bounded(run: Run) -> bool:
    """Return whether emulated devices do not change and the drafter alone drafts, as C(M) assumes."""
    strategy = make_strategy(run.strategy, dict(run.options))
    drafts_alone = not (isinstance(strategy, HierarchicalStrategy) and strategy.max_side_routes > 0)
    return drafts_alone and isinstance(run.setup, PipelineProfile) and not run.events


def drafts(run: Run) -> bool:
    """Return whether the run's method drafts."""
    return make_strategy(run.strategy, dict(run.options)).needs_drafter


def bounds_of(record: RunRecord, coverage: TreeCoverage, costs: ProfileCosts) -> RunBounds:
    """Return the bounds of a run, from the time average of its rows in flight and its mean context."""
    segments = record.segments_in_flight
    live_rows = record.rows_alive_in_flight / segments if segments > 0 else 1.0
    trip = trip_s(costs, live_rows, record.prompt_tokens + record.new_tokens // 2)
    return RunBounds(
        trip,
        (1 + coverage.depth(record.rows_in_flight)) / trip,
        (1 + coverage.depth(record.rows_alive_in_flight)) / trip,
    )


def all_bounds(
    tasks: Iterable[Task], records: Mapping[str, RunRecord], coverage_of: CoverageOf
) -> dict[str, RunBounds]:
    """Return the bounds of every run that has any, by the run's key."""
    costs: dict[int, ProfileCosts] = {}
    found: dict[str, RunBounds] = {}
    for task in tasks:
        for run in task.runs:
            if is_bounded(run):
                priced = costs.setdefault(id(run.setup), ProfileCosts(run.emulation))
                coverage = coverage_of(task, run) if drafts(run) else UNDRAFTED
                found[run.key] = bounds_of(records[run.key], coverage, priced)
    return found


def bound_together(tokens: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Return the tokens/s of requests one after the other, each at its bound.

    None if no request has a second token.

    Args:
        tokens: number of new tokens of each request.
        bounds: tokens/s of each request after its first token.
    """
    after = sum(count - 1 for count in tokens)
    seconds = sum((count - 1) / bound for count, bound in zip(tokens, bounds, strict=True))
    return after / seconds if seconds > 0 else None
