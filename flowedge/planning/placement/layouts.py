"""Layouts of a model over a fleet: the candidates of a plan.

The times of stages add up, whatever their order, and a layer takes as long as any other. So the fastest
division over given stages, none of which takes longer than a bound, gives the fastest device as many layers
as its memory and the bound allow, then the next one. Bounds trade the sum of the times, which a token waits
for, for the time of the slowest stage, which segments wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, product

from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal

EXACT_DEVICES = 10  # up to which every set of stages is tried where links differ
SLACKS = (1.0, 1.15, 1.4, 2.0, float("inf"))  # bounds, by the least time of the slowest stage


@dataclass(frozen=True)
class Layout:
    """Who does what.

    Attributes:
        stages: names in the order of the layers; split: layers of each. A draft node that is also the first
            stage computes both in turn.
        round_s: seconds of one segment through all stages and links, and its verification.
        slowest_s: seconds of the slowest stage.
    """

    draft_node: str
    stages: tuple[str, ...]
    split: tuple[int, ...]
    round_s: float
    slowest_s: float

    @property
    def devices(self) -> frozenset[str]:
        return frozenset((self.draft_node, *self.stages))


def divided(layers: int, times: Sequence[float], most: Sequence[int], bound: float) -> list[int] | None:
    """Return the layers of each stage with the least sum of times; None if they do not fit.

    Args:
        times: seconds of a layer on each stage; most: layers that it can hold.
        bound: seconds that no stage may take longer than.
    """
    caps = [int(min(cap, bound / time + 1e-9)) for time, cap in zip(times, most, strict=True)]
    if min(caps) < 1 or sum(caps) < layers or layers < len(caps):
        return None
    split, left = [1] * len(caps), layers - len(caps)
    for stage in sorted(range(len(caps)), key=lambda stage: times[stage]):
        more = min(caps[stage] - 1, left)
        split[stage] += more
        left -= more
    return split


def least_bound(layers: int, times: Sequence[float], most: Sequence[int]) -> float | None:
    """Return the least time of the slowest stage over all divisions; None if the layers do not fit."""
    if divided(layers, times, most, float("inf")) is None:
        return None
    limits = zip(times, most, strict=True)
    bounds = sorted({time * count for time, cap in limits for count in range(1, cap + 1)})
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if divided(layers, times, most, bounds[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return bounds[low]


def layouts(goal: Goal, fleet: Fleet, *, all_devices: bool = False) -> list[Layout]:
    """Return the layouts that none other beats in both times, the quickest round first.

    all_devices: whether only layouts count that use every device.
    """
    best: list[Layout] = []
    for draft_node in _of_each_kind(fleet, list(fleet.devices)):
        for layout in _led_by(goal, fleet, draft_node):
            if all_devices and len(layout.devices) < len(fleet.devices):
                continue
            if not any(_beats(other, layout) for other in best):
                best = [other for other in best if not _beats(layout, other)]
                best.append(layout)
    return sorted(best, key=lambda layout: layout.round_s)


def is_exact(fleet: Fleet) -> bool:
    """Return whether `layouts` tries every set of stages."""
    return not fleet.links or len(fleet.devices) <= EXACT_DEVICES


def _beats(one: Layout, other: Layout) -> bool:
    return one.round_s <= other.round_s and one.slowest_s <= other.slowest_s


def _led_by(goal: Goal, fleet: Fleet, draft_node: str) -> Iterator[Layout]:
    """Yield layouts with a draft node, which may be the first stage as well."""
    device, held = fleet.devices[draft_node], goal.draft_node_bytes()
    if held > device.memory_gib * 2**30:
        return
    verify_s = goal.draft_node_s(device)
    others = [name for name in fleet.devices if name != draft_node and goal.runs_on(fleet.devices[name])]
    for chosen in _sets(fleet, others):
        for stages in (chosen, (draft_node, *chosen)):
            if not stages or len(stages) > goal.model.layers:
                continue
            both = stages[0] == draft_node
            if both and not goal.runs_on(device):
                continue
            for first in stages[:1] if both else _of_each_kind(fleet, stages):
                order, link_s = _path(goal, fleet, draft_node, first, stages)
                times = [goal.layer_time_s(fleet.devices[name]) for name in order]
                most = [
                    goal.most_layers(
                        fleet.devices[name], first=name == first, beside=held if name == draft_node else 0.0
                    )
                    for name in order
                ]
                least = least_bound(goal.model.layers, times, most)
                if least is None:
                    continue
                for slack in SLACKS:
                    split = divided(goal.model.layers, times, most, least * slack)
                    assert split is not None, "a larger bound allows what a smaller one does"
                    spent = [time * count for time, count in zip(times, split, strict=True)]
                    slowest = spent[0] + verify_s if both else max(spent)
                    yield Layout(
                        draft_node,
                        tuple(order),
                        tuple(split),
                        sum(spent) + link_s + verify_s,
                        max(slowest, *spent),
                    )


def _sets(fleet: Fleet, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the sets of devices to try as stages: of equal devices on equal links, one set of each size."""
    if fleet.links and len(names) < EXACT_DEVICES:
        for size in range(len(names) + 1):
            yield from combinations(names, size)
        return
    kinds = _kinds(fleet, names)
    for counts in product(*(range(len(kind) + 1) for kind in kinds)):
        yield tuple(name for kind, count in zip(kinds, counts, strict=True) for name in kind[:count])


def _kinds(fleet: Fleet, names: Iterable[str]) -> list[list[str]]:
    """Return names in groups of devices with the same profile."""

    def profile(name: str) -> str:
        return fleet.devices[name].model_dump_json()

    return [list(group) for _, group in groupby(sorted(names, key=profile), key=profile)]


def _of_each_kind(fleet: Fleet, names: Sequence[str]) -> Sequence[str]:
    """Return one device of each kind where links are equal, and all devices where they differ."""
    return names if fleet.links else [kind[0] for kind in _kinds(fleet, names)]


def _path(
    goal: Goal, fleet: Fleet, draft_node: str, first: str, stages: Sequence[str]
) -> tuple[list[str], float]:
    """Return the order of the stages, beginning with `first`, with the least time on links; and that time.

    Dynamic programming over sets of stages (Held and Karp) where links differ and the stages are few; beyond,
    each stage is followed by the one with the best link.
    """

    def link_s(one: str, other: str) -> float:
        link, row = fleet.between(one, other), goal.model.hidden * goal.model.stored_bytes
        return SEGMENT_ROWS * row / link.bytes_per_s + (link.latency_ms + link.jitter_ms / 2) / 1e3

    others, to_first = [each for each in stages if each != first], link_s(draft_node, first)
    if not fleet.links:
        order = [first, *sorted(others, key=lambda name: goal.layer_time_s(fleet.devices[name]))]
    elif len(others) < EXACT_DEVICES:
        order = _shortest(first, draft_node, others, link_s)
    else:
        order, left = [first], list(others)
        while left:
            order.append(min(left, key=lambda name: link_s(order[-1], name)))
            left.remove(order[-1])
    along = sum(link_s(one, other) for one, other in zip(order, [*order[1:], draft_node], strict=True))
    return order, to_first + along


def _shortest(first: str, last: str, others: Sequence[str], link_s: Callable[[str, str], float]) -> list[str]:
    paths: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {(frozenset(), first): (0.0, [first])}
    for _ in others:
        longer: dict[tuple[frozenset[str], str], tuple[float, list[str]]] = {}
        for (visited, end), (taken, order) in paths.items():
            for name in others:
                if name in visited:
                    continue
                key, total = (visited | {name}, name), taken + link_s(end, name)
                if key not in longer or total < longer[key][0]:
                    longer[key] = total, [*order, name]
        paths = longer
    return min(paths.values(), key=lambda path: path[0] + link_s(path[1][-1], last))[1]
