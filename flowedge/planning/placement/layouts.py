"""Layouts of a model over a fleet: the candidates of a plan.

The times of stages add up, whatever their order, and a layer takes as long as any other. So the fastest
division over given stages, none of which takes longer than a bound, gives the fastest device as many layers
as its memory and the bound allow, then the next one. Bounds trade the sum of the times, which a token waits
for, for the time of the slowest stage, which segments wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise, product

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.split import divided, even_split, least_bound

EXACT_DEVICES = 10  # up to which every set of stages is tried where links differ
BOTH = 2.0  # times as long as alone for what a device does that drafts and computes layers at the same time
EVERY_END = 6  # devices up to which each kind of them is tried as the first and as the last stage
SLACKS = (1.0, 1.15, 1.4, 2.0, float("inf"))  # bounds, by the least time of the slowest stage
FINER_SLACKS = (1.0, 1.08, 1.22, 1.5)


@dataclass(frozen=True)
class Search:
    """Which layouts are candidates.

    Attributes:
        leaders: the devices that may draft; None for all.
        apart: whether a draft node holds no layers.
        all_devices: whether only layouts count that use every device.
    """

    leaders: tuple[str, ...] | None = None
    apart: bool = False
    all_devices: bool = False


@dataclass(frozen=True)
class Layout:
    """Who does what.

    Attributes:
        stages: names in the order of the layers; split: layers of each. A draft node that is also the first
            or the last stage computes both in turn.
        verification: where tokens are drawn.
        round_s: seconds of one segment: drafted, through all stages and links, and verified.
        slowest_s: seconds of the device that takes the longest.
        token_s: seconds of one token without drafts, through all stages and links.
    """

    draft_node: str
    stages: tuple[str, ...]
    split: tuple[int, ...]
    verification: VerificationPlace
    round_s: float
    slowest_s: float
    token_s: float

    @property
    def devices(self) -> frozenset[str]:
        return frozenset((self.draft_node, *self.stages))


def layouts(goal: Goal, fleet: Fleet, search: Search = Search()) -> list[Layout]:
    """Return the layouts that none other beats in all three times, the quickest round first."""
    leaders = [name for name in fleet.devices if search.leaders is None or name in search.leaders]
    boards = _Boards(goal, fleet)
    return _unbeaten(
        layout
        for draft_node in boards.of_each_kind(leaders)
        if goal.draft_node_bytes <= boards.memory_bytes(draft_node)
        for line in _lines(boards, draft_node, search)
        for layout in line.divisions(boards)
    )


def layouts_in_order(goal: Goal, fleet: Fleet, draft_node: str, stages: Sequence[str]) -> list[Layout]:
    """Return such layouts of devices whose parts are given, but for the layers and where tokens are drawn."""
    boards = _Boards(goal, fleet)
    lines = _given_lines(boards, draft_node, stages)
    return _unbeaten(layout for line in lines for layout in line.divisions(boards))


def divisions_of(
    goal: Goal, fleet: Fleet, draft_node: str, stages: Sequence[str], split: Sequence[int]
) -> list[Layout]:
    """Return the layouts of devices whose parts and layers are given, with each place that draws tokens.

    They may not fit.
    """
    boards = _Boards(goal, fleet)
    return [line.divided(boards, split) for line in _given_lines(boards, draft_node, stages)]


def finer_divisions(goal: Goal, fleet: Fleet, layout: Layout) -> list[Layout]:
    """Return a layout with the layers divided by more bounds and evenly, with each place that draws."""
    boards, evenly = _Boards(goal, fleet), even_split(goal.model.layers, len(layout.stages))
    lines = _given_lines(boards, layout.draft_node, layout.stages)
    return [
        each
        for line in lines
        for each in (line.divided(boards, evenly), *line.divisions(boards, FINER_SLACKS))
    ]


def shared_stage(draft_node: str, stages: Sequence[str]) -> int | None:
    """Return which stage is on the draft node's device; None if none is."""
    return stages.index(draft_node) if draft_node in stages else None


def is_exact(fleet: Fleet) -> bool:
    """Return whether `layouts` tries every set of stages, and every stage as the first and the last one."""
    return len(fleet.devices) <= (EXACT_DEVICES if fleet.links else EVERY_END)


def _unbeaten(found: Iterable[Layout]) -> list[Layout]:
    best: list[Layout] = []
    for layout in found:
        if not any(_beats(other, layout) for other in best):
            best = [other for other in best if not _beats(layout, other)]
            best.append(layout)
    return sorted(best, key=lambda layout: layout.round_s)


def _beats(one: Layout, other: Layout) -> bool:
    return one.round_s <= other.round_s and one.slowest_s <= other.slowest_s and one.token_s <= other.token_s


class _Boards:
    """What layouts need to know of the devices of a fleet, looked up once."""

    def __init__(self, goal: Goal, fleet: Fleet) -> None:
        self.goal, self.fleet = goal, fleet
        profiles = {name: device.model_dump_json() for name, device in fleet.devices.items()}
        self._kind = {name: sorted(set(profiles.values())).index(each) for name, each in profiles.items()}
        self.layer_s = {name: goal.layer_time_s(device) for name, device in fleet.devices.items()}
        self.head_s = {name: goal.head_time_s(device) for name, device in fleet.devices.items()}
        self.token_layer_s = {name: goal.layer_time_s(device, 1) for name, device in fleet.devices.items()}
        self.token_head_s = {name: goal.head_time_s(device, 1) for name, device in fleet.devices.items()}
        self.draft_s = {name: goal.draft_time_s(device) for name, device in fleet.devices.items()}
        self._most: dict[tuple[str, float], int] = {}

    def kinds(self, names: Iterable[str]) -> list[list[str]]:
        """Return names in groups of devices with the same profile."""
        return [
            [*group]
            for _, group in groupby(sorted(names, key=self._kind.__getitem__), key=self._kind.__getitem__)
        ]

    def of_each_kind(self, names: Sequence[str]) -> Sequence[str]:
        """Return one device of each kind where links are equal, and all devices where they differ."""
        return names if self.fleet.links else [kind[0] for kind in self.kinds(names)]

    def memory_bytes(self, name: str) -> float:
        """Return the bytes that a device can hold."""
        return self.fleet.devices[name].memory_gib * 2**30

    def most(self, name: str, beside: float) -> int:
        """Return how many layers a device can hold; `beside` as in Goal.most_layers."""
        key = name, beside
        if key not in self._most:
            self._most[key] = self.goal.most_layers(self.fleet.devices[name], beside)
        return self._most[key]

    def link_s(self, one: str, other: str, rows: int = SEGMENT_ROWS) -> float:
        """Return the seconds of so many rows on the link between two devices."""
        link, model = self.fleet.between(one, other), self.goal.model
        carried = sum(model.carried) / model.layers  # on average, since it is not known yet where layers end
        row = (model.hidden + carried) * model.stored_bytes
        return rows * row / link.bytes_per_s + (link.latency_ms + link.jitter_ms / 2) / 1e3

    def along(self, draft_node: str, stages: Sequence[str], rows: int = SEGMENT_ROWS) -> float:
        """Return the seconds of so many rows on all links of a pipeline."""
        ring = [draft_node, *stages, draft_node]
        return sum(self.link_s(one, other, rows) for one, other in pairwise(ring))


@dataclass(frozen=True)
class _Line:
    """Stages in order, before the layers are divided.

    Attributes:
        link_s: seconds of one segment on all links.
    """

    draft_node: str
    stages: tuple[str, ...]
    verification: VerificationPlace
    link_s: float

    def divisions(self, boards: _Boards, slacks: Sequence[float] = SLACKS) -> Iterator[Layout]:
        """Yield layouts with the layers divided, for bounds from the least one to none."""
        goal, names = boards.goal, self.stages
        layers, last = goal.model.layers, len(names) - 1
        beside = [0.0] * len(names)
        beside[0] += goal.model.embedding_bytes(goal.quant)
        own = shared_stage(self.draft_node, names)
        if own is not None:
            beside[own] += goal.draft_node_bytes
        if self.verification == LAST_STAGE:
            beside[last] += goal.table_bytes
        times, fixed = self._times(boards), self._fixed(boards)
        most = [boards.most(name, held) for name, held in zip(names, beside, strict=True)]
        least = least_bound(layers, times, most, fixed)
        if least is None:
            return
        known: list[list[int]] = []
        for slack in slacks:
            split = divided(layers, times, most, least * slack, fixed)
            assert split is not None, "a larger bound allows what a smaller one does"
            if split not in known:
                known.append(split)
                yield self.divided(boards, split)

    def divided(self, boards: _Boards, split: Sequence[int]) -> Layout:
        """Return the layout with these layers on each stage."""
        names, own, at_last = self.stages, self.draft_node, self.verification == LAST_STAGE
        verifies = names[-1] if at_last else own
        head_s, draft_s = boards.head_s[verifies], boards.draft_s[own]
        spent = [time * count for time, count in zip(self._times(boards), split, strict=True)]
        slowest_s = max(more + fixed_s for more, fixed_s in zip(spent, self._fixed(boards), strict=True))
        layers_s = sum(boards.token_layer_s[name] * count for name, count in zip(names, split, strict=True))
        return Layout(
            own,
            names,
            tuple(split),
            self.verification,
            sum(spent) + self.link_s + head_s + draft_s,
            max(slowest_s, draft_s if at_last else draft_s + head_s),
            layers_s + boards.along(own, names, 1) + boards.token_head_s[verifies],
        )

    def _times(self, boards: _Boards) -> list[float]:
        """Return the seconds of a layer on each stage; the draft node drafts the next trees meanwhile."""
        times = [boards.layer_s[name] for name in self.stages]
        own = shared_stage(self.draft_node, self.stages)
        if own is not None:
            times[own] *= BOTH
        return times

    def _fixed(self, boards: _Boards) -> list[float]:
        """Return the seconds of each stage beside its layers."""
        head_s = boards.head_s[self.stages[-1]] if self.verification == LAST_STAGE else 0.0
        return [0.0] * (len(self.stages) - 1) + [head_s]


def _given_lines(boards: _Boards, draft_node: str, stages: Sequence[str]) -> list[_Line]:
    """Return the line of devices whose parts are given, with each place that draws tokens."""
    along = boards.along(draft_node, stages)
    places = (DRAFT_NODE,) if stages[-1] == draft_node else (DRAFT_NODE, LAST_STAGE)
    return [_Line(draft_node, tuple(stages), place, along) for place in places]


def _lines(boards: _Boards, draft_node: str, search: Search) -> Iterator[_Line]:
    """Yield the lines with a draft node, which may be the first or the last stage as well."""
    goal, fleet = boards.goal, boards.fleet
    computing = [name for name, device in fleet.devices.items() if goal.runs_on(device)]
    others = [name for name in computing if name != draft_node]
    complete = len(others) == len(fleet.devices) - 1
    for chosen in ([tuple(others)] if complete else []) if search.all_devices else _sets(boards, others):
        for stages in (chosen, (draft_node, *chosen)):
            both = draft_node in stages
            if not stages or len(stages) > goal.model.layers or (both and search.apart):
                continue
            if both and draft_node not in computing:
                continue
            for first in stages[:1] if both else _firsts(boards, stages):
                yield from _from_first(boards, draft_node, first, [each for each in stages if each != first])
            for first in _firsts(boards, chosen) if both and chosen else ():
                yield _to_draft_node(boards, draft_node, first, [each for each in chosen if each != first])


def _from_first(boards: _Boards, draft_node: str, first: str, others: Sequence[str]) -> Iterator[_Line]:
    """Yield the lines that begin with a stage: with each place that draws tokens, and each last stage."""
    fleet = boards.fleet
    if not others:
        yield from _given_lines(boards, draft_node, [first])
        return
    lasts = others if fleet.links else _lasts(boards, others)
    ways = _ways(boards, first, others, lasts)
    back = {order[-1]: along + boards.link_s(order[-1], draft_node) for along, order in ways}
    to_first = boards.link_s(draft_node, first)
    _, nearest = min(ways, key=lambda way: back[way[1][-1]])
    yield _Line(draft_node, tuple(nearest), DRAFT_NODE, to_first + back[nearest[-1]])
    for _, order in ways:
        yield _Line(draft_node, tuple(order), LAST_STAGE, to_first + back[order[-1]])


def _to_draft_node(boards: _Boards, draft_node: str, first: str, between: Sequence[str]) -> _Line:
    """Return the quickest line from a first stage to the draft node as the last one, which draws tokens."""
    ways = _ways(boards, first, between, between) if between else [(0.0, [first])]
    _, order = min(ways, key=lambda way: way[0] + boards.link_s(way[1][-1], draft_node))
    stages = (*order, draft_node)
    return _Line(draft_node, stages, DRAFT_NODE, boards.along(draft_node, stages))


def _firsts(boards: _Boards, stages: Sequence[str]) -> Sequence[str]:
    """Return the stages to try as the first one, which also holds the embedding."""
    if boards.fleet.links or len(boards.fleet.devices) <= EVERY_END:
        return boards.of_each_kind(stages)
    return [max(stages, key=boards.memory_bytes)]


def _lasts(boards: _Boards, stages: Sequence[str]) -> Sequence[str]:
    """Return the stages to try as a last one that draws tokens, which also holds the LM head."""
    if len(boards.fleet.devices) <= EVERY_END:
        return boards.of_each_kind(stages)
    return [*{min(stages, key=boards.head_s.__getitem__): 0, max(stages, key=boards.memory_bytes): 0}]


def _ways(
    boards: _Boards, first: str, others: Sequence[str], lasts: Sequence[str]
) -> list[tuple[float, list[str]]]:
    """Return the best order for each stage that may be the last, and its seconds on the links between them.

    Dynamic programming over sets of stages (Held and Karp) where links differ and the stages are few; beyond,
    each stage is followed by the one with the best link.
    """
    link_s = boards.link_s
    if not boards.fleet.links:
        along = sum(link_s(first, other) for other in others)  # all links are alike
        by_time = sorted(others, key=boards.layer_s.__getitem__)
        return [(along, [first, *(each for each in by_time if each != last), last]) for last in lasts]
    if len(others) < EXACT_DEVICES:
        return _shortest(first, others, link_s)
    order, left = [first], list(others)
    while left:
        order.append(min(left, key=lambda name: link_s(order[-1], name)))
        left.remove(order[-1])
    return [(sum(link_s(one, other) for one, other in pairwise(order)), order)]


def _sets(boards: _Boards, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the sets of devices to try as stages: of equal devices on equal links, one set of each size."""
    if boards.fleet.links and len(names) < EXACT_DEVICES:
        for size in range(len(names) + 1):
            yield from combinations(names, size)
        return
    kinds = boards.kinds(names)
    for counts in product(*(range(len(kind) + 1) for kind in kinds)):
        yield tuple(name for kind, count in zip(kinds, counts, strict=True) for name in kind[:count])


def _shortest(
    first: str, others: Sequence[str], link_s: Callable[[str, str], float]
) -> list[tuple[float, list[str]]]:
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
    return list(paths.values())
