"""What any schedule could reach at most, with the rows that a run had in flight.

While one segment crosses the pipeline no token comes out whose row is not in flight: at most the root's draw
and one more for each row below it on the true path. So tokens/s <= (1 + C(M)) / T_lat, with C of reach.py and
T_lat of crossing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.bounds.empty_pipeline import crossing_s
from flowedge_testbed.bounds.tree_coverage import UNDRAFTED, TreeCoverage
from flowedge_testbed.costs.costs import ProfileCosts
from flowedge_testbed.emulation.emulation import Emulation
from flowedge_testbed.plan import Run, Task
from flowedge_testbed.record import RunRecord

ReachOf = Callable[[Task, Run], TreeCoverage]


@dataclass(frozen=True)
class RunBounds:
    """Of one run.

    Attributes:
        crossing_s: T_lat of a segment of as many live rows as the run's had.
        sent_tokens_per_s: where M counts the rows as sent; alive_tokens_per_s: those of them not pruned yet.
    """

    crossing_s: float
    sent_tokens_per_s: float
    alive_tokens_per_s: float


def is_bounded(run: Run) -> bool:
    """Whether devices are emulated and no model drafts but the drafter, as C(M) has it."""
    strategy = make_strategy(run.strategy, dict(run.options))
    drafts_alone = not (isinstance(strategy, HierarchicalStrategy) and strategy.max_side_routes > 0)
    return drafts_alone and isinstance(run.setup, Emulation)


def drafts(run: Run) -> bool:
    """Whether the run's method drafts."""
    return make_strategy(run.strategy, dict(run.options)).needs_drafter


def bounds_of(record: RunRecord, reach: TreeCoverage, costs: ProfileCosts) -> RunBounds:
    """The bounds of a run, by its rows in flight on time average and its mean context."""
    segments = record.segments_in_flight
    live_rows = record.rows_alive_in_flight / segments if segments > 0 else 1.0
    crossing = crossing_s(costs, live_rows, record.prompt_tokens + record.new_tokens // 2)
    return RunBounds(
        crossing,
        (1 + reach.depth(record.rows_in_flight)) / crossing,
        (1 + reach.depth(record.rows_alive_in_flight)) / crossing,
    )


def all_bounds(
    tasks: Iterable[Task], records: Mapping[str, RunRecord], reach_of: ReachOf
) -> dict[str, RunBounds]:
    """Those of every run that has them, by its key."""
    costs: dict[int, ProfileCosts] = {}
    found: dict[str, RunBounds] = {}
    for task in tasks:
        for run in task.runs:
            if is_bounded(run):
                priced = costs.setdefault(id(run.setup), ProfileCosts(run.emulation))
                reach = reach_of(task, run) if drafts(run) else UNDRAFTED
                found[run.key] = bounds_of(records[run.key], reach, priced)
    return found


def bound_together(tokens: Sequence[int], bounds: Sequence[float]) -> float | None:
    """Tokens/s of requests one after the other, each at its bound; None when no token comes after a first.

    Args:
        tokens: new tokens of each; bounds: its tokens/s after the first.
    """
    after = sum(count - 1 for count in tokens)
    seconds = sum((count - 1) / bound for count, bound in zip(tokens, bounds, strict=True))
    return after / seconds if seconds > 0 else None
