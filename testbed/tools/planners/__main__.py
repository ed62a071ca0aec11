"""`python -m testbed.tools.planners`: the plan beside other planners over random fleets."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from flowedge.core.errors import CapacityError
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import Layout
from flowedge.planning.placement.plan import plan
from flowedge.planning.placement.score import profile_of, tokens_per_s
from testbed.tools.planners.fleets import MOST_DEVICES, case
from testbed.tools.planners.rivals import RIVALS, every

BLIND = "without knowing of drafts"
EVERY = "the best of every layout"


@dataclass(frozen=True)
class Row:
    """Tokens a second by planner in one case; None where a planner's layouts do not fit."""

    title: str
    planned: float
    others: dict[str, float | None]


def best(goal: Goal, fleet: Fleet, found: Iterable[Layout]) -> float | None:
    """Return the most tokens a second of `auto` over layouts that fit; None if none does."""
    scored = []
    for layout in found:
        try:
            scored.append(tokens_per_s(profile_of(layout, goal, fleet), goal))
        except CapacityError:
            continue
    return max(scored, default=None)


def row(seed: int, every_of: int = 0) -> Row | None:
    """Return the row of a case; None where no plan fits.

    every_of: devices of the fleet at most, all of whose layouts are tried as well; 0 for other fleets.
    """
    made = case(seed, every_of or MOST_DEVICES)
    try:
        planned = plan(made.goal, made.fleet)
        blind = plan(replace(made.goal, hits=(0.0,)), made.fleet)  # as if no draft were ever right
    except CapacityError:
        return None
    others = {
        name: best(made.goal, made.fleet, rival(made.goal, made.fleet))
        for name, rival in {**RIVALS, **({EVERY: every} if every_of else {})}.items()
    }
    others[BLIND] = tokens_per_s(blind.best.pipeline, made.goal)
    return Row(made.title, planned.best.tokens_per_s, others)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.planners", description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--every",
        type=int,
        default=0,
        metavar="DEVICES",
        help="fleets of so many at most, and all their layouts",
    )
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.cases)
    with ProcessPoolExecutor(options.processes) as pool:
        rows = []
        for seed, found in zip(seeds, pool.map(partial(row, every_of=options.every), seeds), strict=True):
            if found is None:
                print(f"{seed}: no plan fits", file=sys.stderr, flush=True)
                continue
            told = ", ".join(f"{name} {value and round(value, 2)}" for name, value in found.others.items())
            print(f"{seed}: {found.title}: {found.planned:.2f}; {told}", file=sys.stderr, flush=True)
            rows.append(found)
    print(f"{len(rows)} of {options.cases} fleets, from seed {options.first} on\n")
    print("| planner | fits | its tokens/s by the plan's, geometric mean | worst | best |")
    print("|---|---:|---:|---:|---:|")
    for name in [*RIVALS, BLIND, *([EVERY] if options.every else [])]:
        ratios = [value / each.planned for each in rows if (value := each.others[name]) is not None]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"| {name} | {len(ratios)} | {mean:.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")


if __name__ == "__main__":
    main()
