"""The plan of a model over a fleet: the fastest layout, and what speaks against others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.pipeline_config import Quantisation
from flowedge.device.memory import gib
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import (
    Layout,
    Search,
    divisions_of,
    finer_divisions,
    layouts,
    layouts_in_order,
)
from flowedge.planning.placement.score import profile_of, tokens_per_s
from flowedge.planning.profile.pipeline import PipelineProfile

SCORED = 12  # layouts that are tried on the virtual clock, of all that none other beats
SLOWEST = (0.5, 2.0)  # times that the slowest device counts beside a round, in the orders of likely layouts
FEWER = 4  # such layouts of a plan's devices and one more
OTHERS = 3  # that are shown
FEW, REFINED = 4, 3  # up to so many devices, layers of so many sets of stages are moved, otherwise of one
WORTH_MOVING = 1.02  # times as fast that layers are moved for
NEAR = 0.8  # share of the best one's tokens/s that such a set has
MOVES = 8  # of layers between neighbours that are tried for each of them
SHORT, HOPELESS = 48, 0.8  # tokens of a first trial, and the share of the best below which it is enough
LEAST_GAIN = 1.005  # for which a further device is taken in


@dataclass(frozen=True)
class ScoredLayout:
    """A layout with its tokens a second on the virtual clock."""

    layout: Layout
    pipeline: PipelineProfile
    tokens_per_s: float

    @property
    def num_devices(self) -> int:
        return len(self.layout.devices)


@dataclass(frozen=True)
class LeftOut:
    """A device that the plan does not use.

    Attributes:
        tokens_per_s: of the best layout that uses it; None where none can.
    """

    device: str
    tokens_per_s: float | None
    why: str


@dataclass(frozen=True)
class Plan:
    """What to set up.

    Attributes:
        plain_tokens_per_s: of the best layout without drafts.
        others: the best of the other layouts that were scored, the best first.
        tried: how many of the layouts that none other beats were scored, of how many.
    """

    goal: Goal
    best: ScoredLayout
    plain_tokens_per_s: float
    others: tuple[ScoredLayout, ...]
    left_out: tuple[LeftOut, ...]
    tried: tuple[int, int]


def plan(goal: Goal, fleet: Fleet, search: Search = Search()) -> Plan:  # noqa: B008 (frozen)
    """Return the plan with the most tokens a second of one answer of `auto`; of equals, the fewest devices.

    Raises:
        CapacityError: when the model does not fit; the error says by how much.
    """
    scoring, found = _Scoring(goal), layouts(goal, fleet, search)
    scored = scoring.of(fleet, _likely(found, SCORED))
    if not scored:
        raise too_large(goal, fleet)
    best, left_out, tried = _preferred(scored), list[LeftOut](), (len(scored), len(found))
    for _ in fleet.devices:
        further = scoring.with_each_more(fleet, best, search)
        left_out = [_why(name, each, best) for name, each in further.items()]
        gains = [each for each in further.values() if each is not None and _is_better(each, best)]
        if not gains:
            break
        best = max(gains, key=_tokens_per_s)
        scored.append(best)
    scored += scoring.of(fleet, finer_divisions(goal, fleet, best.layout), beside=best)
    for line in _best_lines(scored)[: REFINED if len(fleet.devices) <= FEW else 1]:
        if line.tokens_per_s >= NEAR * best.tokens_per_s:
            moved = scoring.moved(fleet, line, beside=best)
            scored += [moved] if moved.tokens_per_s >= WORTH_MOVING * line.tokens_per_s else []
    refined = _preferred(scored)
    if refined.layout.devices != best.layout.devices:
        further = scoring.with_each_more(fleet, refined, search)
        left_out = [_why(name, each, refined) for name, each in further.items()]
    best = refined
    shown = {_shown(best): best}
    for each in sorted(scored, key=_tokens_per_s, reverse=True):
        shown.setdefault(_shown(each), each)
    others = [*shown.values()][1:]
    return Plan(
        goal,
        best,
        tokens_per_s(best.pipeline, goal, "autoregressive"),
        tuple(others[:OTHERS]),
        tuple(left_out),
        tried,
    )


def division(goal: Goal, fleet: Fleet, draft_node: str, stages: Sequence[str]) -> list[ScoredLayout]:
    """Return the layouts of devices whose parts are given, the one with the most tokens a second first.

    Raises:
        CapacityError: when the model does not fit on these stages.
    """
    scored = _Scoring(goal).of(fleet, layouts_in_order(goal, fleet, draft_node, stages))
    if not scored:
        raise too_large(goal, Fleet({name: fleet.devices[name] for name in stages}, fleet.link, fleet.links))
    return sorted(scored, key=_tokens_per_s, reverse=True)


def best_quant(goal: Goal, fleet: Fleet, quants: Sequence[Quantisation]) -> Goal:
    """Return the goal in the first of the quantisations, the best quality first, in which the model fits.

    Raises:
        CapacityError: when it fits in none.
    """
    error: CapacityError | None = None
    for quant in quants:
        tried = replace(goal, quant=quant)
        if layouts(tried, fleet):
            return tried
        error = too_large(tried, fleet)
    if error is None:
        raise BadRequestError("no quantisation is given")
    raise error


def _likely(found: Sequence[Layout], most: int) -> list[Layout]:
    """Return the layouts that are likely to be the fastest ones: with drafts, and where drafts do not pay.

    With drafts an answer waits for whole rounds, and for the slowest device while several segments are under
    way: for a half to two times that device's part of a round.
    """
    shorter, longer = SLOWEST
    orders = (
        sorted(found, key=lambda layout: layout.round_s + shorter * layout.slowest_s),
        sorted(found, key=lambda layout: layout.round_s + longer * layout.slowest_s),
        sorted(found, key=lambda layout: layout.token_s),
    )
    return [*dict.fromkeys(layout for best in zip(*orders, strict=True) for layout in best)][:most]


class _Scoring:
    """Tries layouts on the virtual clock, those that are alike but for names once."""

    def __init__(self, goal: Goal) -> None:
        self._goal = goal
        self._short: dict[str, float] = {}
        self._known: dict[str, float] = {}

    def of(
        self, fleet: Fleet, chosen: Iterable[Layout], beside: ScoredLayout | None = None
    ) -> list[ScoredLayout]:
        """Return the layouts that fit, with their tokens a second.

        A short trial is made of all, and a longer one of those that it does not show to be clearly slower
        than the best of them, or than a layout `beside` them.
        """
        fitting = []
        for layout in chosen:
            try:
                pipeline = profile_of(layout, self._goal, fleet)
            except CapacityError:  # by parts that layouts count roughly
                continue
            fitting.append((layout, pipeline, repr(pipeline)))
        for _, pipeline, key in fitting:
            if key not in self._known and key not in self._short:
                self._short[key] = tokens_per_s(pipeline, self._goal, answer=SHORT)
        quick = [self._short[key] for *_, key in fitting if key not in self._known]
        least = HOPELESS * max([*quick, 0.0 if beside is None else beside.tokens_per_s])
        for _, pipeline, key in fitting:
            if key not in self._known and self._short[key] >= least:
                self._known[key] = tokens_per_s(pipeline, self._goal)
        return [
            ScoredLayout(layout, pipeline, self._known.get(key, self._short[key]))
            for layout, pipeline, key in fitting
        ]

    def moved(self, fleet: Fleet, start: ScoredLayout, beside: ScoredLayout) -> ScoredLayout:
        """Return a layout after layers were moved between neighbours, as long as that was faster.

        Fewer layers are moved at a time, from an eighth of all down to one. `beside` is as in `of`.
        """
        best, moves = start, 0
        step, tried = max(self._goal.model.layers // 8, 1), {start.layout.split}
        while step and moves < MOVES:
            layout = best.layout
            splits = [split for split in neighbours(layout.split, step) if split not in tried]
            tried.update(splits)
            moved = [
                each
                for split in splits
                for each in divisions_of(self._goal, fleet, layout.draft_node, layout.stages, split)
                if each.verification == layout.verification
            ]
            scored = self.of(fleet, moved, beside)
            moves += len(scored)
            faster = max(scored, key=_tokens_per_s, default=best)
            if _is_better(faster, best):
                best = faster
            else:
                step //= 2
        return best

    def with_each_more(
        self, fleet: Fleet, best: ScoredLayout, search: Search
    ) -> dict[str, ScoredLayout | None]:
        """Return `with_one_more` for each device that a layout does not use."""
        unused = [name for name in fleet.devices if name not in best.layout.devices]
        return {name: self.with_one_more(fleet, best, name, search) for name in unused}

    def with_one_more(
        self, fleet: Fleet, best: ScoredLayout, name: str, search: Search
    ) -> ScoredLayout | None:
        """Return the best layout of the best one's devices and another one; None where nothing fits on that.

        The times of a round and of the slowest stage do not tell all: a draft node of its own also drafts
        while a stage computes. So each device is tried on the virtual clock.
        """
        used = {each: fleet.devices[each] for each in sorted(best.layout.devices | {name})}
        smaller = Fleet(used, fleet.link, fleet.links)
        found = layouts(self._goal, smaller, replace(search, all_devices=True))
        scored = self.of(smaller, _likely(found, FEWER), beside=best)
        return _preferred(scored) if scored else None


def neighbours(split: Sequence[int], step: int) -> list[tuple[int, ...]]:
    """Return divisions with so many layers moved from a stage to the one before or behind it."""
    found = []
    for one, other in pairwise(range(len(split))):
        for source, to in ((one, other), (other, one)):
            if split[source] > step:
                moved = [*split]
                moved[source] -= step
                moved[to] += step
                found.append(tuple(moved))
    return found


def _best_lines(scored: Sequence[ScoredLayout]) -> list[ScoredLayout]:
    """Return the best layout of each draft node with each order of stages, the best of all first."""
    best: dict[tuple[str, tuple[str, ...]], ScoredLayout] = {}
    for each in sorted(scored, key=_tokens_per_s, reverse=True):
        best.setdefault((each.layout.draft_node, each.layout.stages), each)
    return [*best.values()]


def _shown(scored: ScoredLayout) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    """Return what tells a layout apart from others for a reader."""
    return scored.layout.draft_node, scored.layout.stages, scored.layout.split


def _tokens_per_s(scored: ScoredLayout) -> float:
    return scored.tokens_per_s


def _is_better(one: ScoredLayout, other: ScoredLayout) -> bool:
    return one.tokens_per_s > LEAST_GAIN * other.tokens_per_s


def _preferred(scored: Sequence[ScoredLayout]) -> ScoredLayout:
    """Return the fastest layout; of those that are about as fast, the one with the fewest devices."""
    most = max(each.tokens_per_s for each in scored)
    close = [each for each in scored if each.tokens_per_s * LEAST_GAIN >= most]
    return min(close, key=lambda each: (each.num_devices, -each.tokens_per_s))


def with_another(made: Plan, fleet: Fleet) -> dict[str, float]:
    """Return the tokens a second with one more device of each kind, by the first device of the kind."""
    of_kind = {device.model_dump_json(): name for name, device in [*fleet.devices.items()][::-1]}
    scoring, best, found = _Scoring(made.goal), made.best, dict[str, float]()
    for name in fleet.devices:
        if name in of_kind.values():
            with_it = scoring.with_one_more(fleet.with_another(name), best, f"another {name}", Search())
            found[name] = max(best.tokens_per_s, with_it.tokens_per_s if with_it else 0.0)
    return found


def _why(name: str, with_it: ScoredLayout | None, best: ScoredLayout) -> LeftOut:
    if with_it is None:
        return LeftOut(name, None, "nothing fits on it beside the others")
    loss = 1 - with_it.tokens_per_s / best.tokens_per_s
    why = "no faster with it" if loss < LEAST_GAIN - 1 else f"{loss:.0%} slower with it"
    return LeftOut(name, with_it.tokens_per_s, why)


def too_large(goal: Goal, fleet: Fleet) -> CapacityError:
    """Return the error that says what is missing."""
    held = [goal.most_layers(device) for device in fleet.devices.values()]
    needed = goal.layer_bytes * goal.model.layers
    missing = needed - goal.layer_bytes * sum(held)
    what = f"{goal.model.title} in {goal.quant} with {goal.rows} rows of context"
    if missing > 0:
        return CapacityError(
            f"{what} does not fit: its {goal.model.layers} layers take {gib(needed)}, and the devices hold "
            f"{sum(held)} of them; {gib(missing)} are missing. Add a device, or use a smaller quantisation "
            "or context"
        )
    return CapacityError(
        f"{what} does not fit: no device has room for the draft node's LM head and drafter "
        f"({gib(goal.draft_node_bytes)}) beside the layers; add a device, or use a smaller context"
    )
