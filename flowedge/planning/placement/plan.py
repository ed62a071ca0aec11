"""The plan of a model over a fleet: the fastest layout, and what speaks against others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.pipeline_config import Quantisation
from flowedge.device.memory import gib
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import Layout, layouts
from flowedge.planning.placement.score import profile_of, tokens_per_s
from flowedge.planning.profile.pipeline import PipelineProfile

SCORED = 8  # layouts that are tried on the virtual clock, of all that none other beats
OTHERS = 3
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
        another: by a device of each kind, the tokens a second with one more of its kind.
        tried: how many layouts were scored, of how many.
    """

    goal: Goal
    best: ScoredLayout
    plain_tokens_per_s: float
    others: tuple[ScoredLayout, ...]
    left_out: tuple[LeftOut, ...]
    another: dict[str, float]
    tried: tuple[int, int]


def plan(goal: Goal, fleet: Fleet) -> Plan:
    """Return the plan with the most tokens a second of one answer of `auto`; of equals, the fewest devices.

    Raises:
        CapacityError: when the model does not fit; the error says by how much.
    """
    found = layouts(goal, fleet)
    scored = _scored(goal, fleet, _spread(found))
    if not scored:
        raise _too_large(goal, fleet)
    best, left_out = _preferred(scored), list[LeftOut]()
    for _ in fleet.devices:
        further = _with_one_more(goal, fleet, best)
        left_out = [_why(name, each, best) for name, each in further.items()]
        gains = [each for each in further.values() if each is not None and _is_better(each, best)]
        if not gains:
            break
        best = max(gains, key=lambda each: each.tokens_per_s)
        scored.append(best)
    others = sorted(
        (each for each in scored if each is not best), key=lambda each: each.tokens_per_s, reverse=True
    )
    return Plan(
        goal,
        best,
        tokens_per_s(best.pipeline, goal, "autoregressive"),
        tuple(others[:OTHERS]),
        tuple(left_out),
        _with_another(goal, fleet, best),
        (len(scored), len(found)),
    )


def best_quant(goal: Goal, fleet: Fleet, quants: Sequence[Quantisation]) -> Goal:
    """Return the goal in the first of the quantisations, the best quality first, in which the model fits.

    Raises:
        CapacityError: when it fits in none.
    """
    error: CapacityError | None = None
    for quant in quants:
        tried = Goal(goal.model, quant, goal.drafter, goal.context, goal.sessions, goal.hits)
        if layouts(tried, fleet):
            return tried
        error = _too_large(tried, fleet)
    if error is None:
        raise BadRequestError("no quantisation is given")
    raise error


def _spread(found: Sequence[Layout], most: int = SCORED) -> list[Layout]:
    """Return layouts to score: all if they are few, else the first and last and some between them."""
    if len(found) <= most:
        return list(found)
    return [found[round(place * (len(found) - 1) / (most - 1))] for place in range(most)]


def _scored(goal: Goal, fleet: Fleet, chosen: Sequence[Layout]) -> list[ScoredLayout]:
    """Return the layouts that fit, with their tokens a second."""
    scored = []
    for layout in chosen:
        try:
            pipeline = profile_of(layout, goal, fleet)
        except CapacityError:  # by parts that layouts count roughly
            continue
        scored.append(ScoredLayout(layout, pipeline, tokens_per_s(pipeline, goal)))
    return scored


def _is_better(one: ScoredLayout, other: ScoredLayout) -> bool:
    return one.tokens_per_s > LEAST_GAIN * other.tokens_per_s


def _preferred(scored: Sequence[ScoredLayout]) -> ScoredLayout:
    """Return the fastest layout; of those that are about as fast, the one with the fewest devices."""
    most = max(each.tokens_per_s for each in scored)
    close = [each for each in scored if each.tokens_per_s * LEAST_GAIN >= most]
    return min(close, key=lambda each: (each.num_devices, -each.tokens_per_s))


def _with_one_more(goal: Goal, fleet: Fleet, best: ScoredLayout) -> dict[str, ScoredLayout | None]:
    """Return, for each device that the best layout leaves out, the best layout of its devices and this one.

    The times of a round and of the slowest stage do not tell all: a draft node of its own also drafts while
    a stage computes. So each device is tried on the virtual clock.
    """
    of_kind: dict[str, ScoredLayout | None] = {}
    found: dict[str, ScoredLayout | None] = {}
    for name, device in fleet.devices.items():
        if name in best.layout.devices:
            continue
        kind = name if fleet.links else device.model_dump_json()
        if kind not in of_kind:
            used = {each: fleet.devices[each] for each in (*best.layout.devices, name)}
            smaller = Fleet(used, fleet.link, fleet.links)
            scored = _scored(goal, smaller, _spread(layouts(goal, smaller, all_devices=True), OTHERS))
            of_kind[kind] = _preferred(scored) if scored else None
        found[name] = of_kind[kind]
    return found


def _with_another(goal: Goal, fleet: Fleet, best: ScoredLayout) -> dict[str, float]:
    """Return the tokens a second with one more device of each kind, by the first device of the kind."""
    of_kind = {device.model_dump_json(): name for name, device in [*fleet.devices.items()][::-1]}
    found: dict[str, float] = {}
    for name in fleet.devices:
        if name in of_kind.values():
            larger = fleet.with_another(name)
            scored = _scored(goal, larger, _spread(layouts(goal, larger), OTHERS))
            found[name] = max(best.tokens_per_s, *(each.tokens_per_s for each in scored))
    return found


def _why(name: str, with_it: ScoredLayout | None, best: ScoredLayout) -> LeftOut:
    if with_it is None:
        return LeftOut(name, None, "nothing fits on it beside the others")
    loss = 1 - with_it.tokens_per_s / best.tokens_per_s
    why = "no faster with it" if loss < LEAST_GAIN - 1 else f"{loss:.0%} slower with it"
    return LeftOut(name, with_it.tokens_per_s, why)


def _too_large(goal: Goal, fleet: Fleet) -> CapacityError:
    """Return the error that says what is missing."""
    held = [goal.most_layers(device, first=False) for device in fleet.devices.values()]
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
        f"({gib(goal.draft_node_bytes())}) beside the layers; add a device, or use a smaller context"
    )
