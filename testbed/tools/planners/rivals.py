"""Other ways to lay a model out. Each returns layouts, of which the best one counts.

None of them places drafting. So a rival has the draft node and the place that draws tokens that suit it best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.placement.layouts import Layout, layouts
from flowedge.planning.split import even_split

Planner = Callable[[Goal, Fleet], Iterable[Layout]]


def even(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """All devices, and as many layers on each."""
    return _led([*fleet.devices], lambda names: even_split(goal.model.layers, len(names)), goal)


def by_memory(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """Layers by free memory, as exo divides them."""
    return _led(
        [*fleet.devices], lambda names: _by([fleet.devices[name].memory_gib for name in names], goal), goal
    )


def by_compute(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """Layers by speed, as Parallax fills devices up."""
    speeds = {name: 1 / goal.layer_time_s(device) for name, device in fleet.devices.items()}
    return _led([*fleet.devices], lambda names: _by([speeds[name] for name in names], goal), goal)


def halda(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """The least time of one token through all stages and links; devices are left out (Halda, prima.cpp)."""
    return _with_each_place(min(_all(goal, fleet), key=lambda layout: layout.token_s, default=None))


def mesh_llm(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """The least sum of hops and the slowest stage, with the fewest nodes (Mesh-LLM)."""

    def time_s(layout: Layout) -> tuple[float, int]:
        hops = len(layout.stages) + (layout.stages[0] != layout.draft_node)
        return round(hops * fleet.link.latency_ms / 1e3 + layout.slowest_s, 6), len(layout.devices)

    return _with_each_place(min(_all(goal, fleet), key=time_s, default=None))


def edgeshard(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """The least time of the slowest stage or link, which is the most throughput (EdgeShard)."""
    row = goal.model.hidden * goal.model.stored_bytes
    link_s = SEGMENT_ROWS * row / fleet.link.bytes_per_s

    def time_s(layout: Layout) -> float:
        return max(layout.slowest_s, link_s if len(layout.devices) > 1 else 0.0)

    return _with_each_place(min(_all(goal, fleet), key=time_s, default=None))


def every(goal: Goal, fleet: Fleet) -> Iterator[Layout]:
    """All layouts of a small fleet, those of three stages by steps of a sixteenth of the layers."""
    names = [*fleet.devices]
    for leader in names:
        others = [name for name in names if name != leader]
        for count in range(len(others) + 1):
            for chosen in permutations(others, count):
                for stages in ((leader, *chosen), chosen):
                    step = max(goal.model.layers // 16, 1) if len(stages) > 2 else 1
                    yield from _divided(leader, stages, goal.model.layers, step)


RIVALS: Mapping[str, Planner] = {
    "even": even,
    "by free memory (exo)": by_memory,
    "by compute": by_compute,
    "Halda": halda,
    "Mesh-LLM": mesh_llm,
    "EdgeShard": edgeshard,
}


def _divided(leader: str, stages: tuple[str, ...], layers: int, step: int) -> Iterator[Layout]:
    for cuts in combinations(range(step, layers, step), len(stages) - 1) if stages else ():
        split = tuple(stop - start for start, stop in pairwise((0, *cuts, layers)))
        for place in (DRAFT_NODE,) if stages == (leader,) else (DRAFT_NODE, LAST_STAGE):
            yield Layout(leader, stages, split, place, 0.0, 0.0, 0.0)


def _all(goal: Goal, fleet: Fleet) -> list[Layout]:
    return layouts(goal, fleet)


def _with_each_place(found: Layout | None) -> Iterator[Layout]:
    if found is not None:
        alone = found.stages == (found.draft_node,)
        for place in (DRAFT_NODE,) if alone else (DRAFT_NODE, LAST_STAGE):
            yield replace(found, verification=place)


def _led(names: list[str], split: Callable[[list[str]], list[int]], goal: Goal) -> Iterator[Layout]:
    """Yield layouts of all devices with each as the draft node: apart, and as the first stage as well."""
    for leader, apart in product(names, (True, False)):
        others = [name for name in names if name != leader]
        stages = others if apart else [leader, *others]
        if not 0 < len(stages) <= goal.model.layers:
            continue
        layers = tuple(split(stages))
        for place in (DRAFT_NODE, LAST_STAGE) if others else (DRAFT_NODE,):
            yield Layout(leader, tuple(stages), layers, place, 0.0, 0.0, 0.0)


def _by(weights: list[float], goal: Goal) -> list[int]:
    """Return at least a layer for each, the others in proportion to the weights, largest remainders first."""
    layers = goal.model.layers - len(weights)
    shares = [layers * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    for index in sorted(range(len(shares)), key=lambda index: counts[index] - shares[index])[
        : layers - sum(counts)
    ]:
        counts[index] += 1
    return [1 + count for count in counts]
