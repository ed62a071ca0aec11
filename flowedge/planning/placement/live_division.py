"""Which agents of a pipeline take part, in which order and with how many layers, by what they measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowedge.core.errors import CapacityError
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import Layout, Search
from flowedge.planning.placement.plan import LeftOut, Plan, division, plan
from flowedge.planning.placement.score import profile_of, tokens_per_s
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.split import even_split

PLAIN = "autoregressive"
WORTH = 1.05  # how many times as fast an uneven division has to be; measurements scatter


@dataclass(frozen=True)
class Division:
    """The stages, by their addresses, and the layers of each.

    Attributes:
        draft_node: the device that drafts, by its address.
        plain_tokens_per_s: that are expected without drafts, which depend on the text.
        compared: the same with the layers divided evenly, in words; empty where they are.
        left_out: the devices that hold no layers.
        goal, fleet: by which it was found; the devices have their addresses as names.
    """

    goal: Goal = field(repr=False)
    fleet: Fleet = field(repr=False)
    draft_node: str
    stages: tuple[str, ...]
    split: tuple[int, ...]
    plain_tokens_per_s: float
    compared: str = ""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.goal.model.title

    def holds_for(self, model: str, stages: int) -> bool:
        """Return whether it divides a model of this name, or in a directory of it, over so many stages."""
        return (self.model, len(self.split)) == (Path(model).name, stages)

    def words(self, names: Mapping[str, str]) -> str:
        """Return what is said of it. names: of the devices, by address."""
        parts = [f"{names[each]} {count}" for each, count in zip(self.stages, self.split, strict=True)]
        expected = f"{self.plain_tokens_per_s:.1f} tokens/s expected without drafts"
        without = [f"{names.get(each.device, each.device)} ({each.why})" for each in self.left_out]
        idle = f"; left out: {', '.join(without)}" if without else ""
        return f"layers by what the devices measured: {', '.join(parts)}; {expected}{self.compared}{idle}"


def divide(goal: Goal, fleet: Fleet, draft_node: str, stages: Sequence[str]) -> Division:
    """Return the division over given stages with the most tokens a second of `auto`.

    An even one is kept unless another is clearly faster.

    Raises:
        CapacityError: when the model does not fit on these stages.
    """
    best, *_ = division(goal, fleet, draft_node, stages)
    evenly = replace(best.layout, split=tuple(even_split(goal.model.layers, len(stages))))
    even = _pipeline(evenly, goal, fleet)
    chosen, compared = best.pipeline, "; an even division does not fit"
    if even is not None and best.tokens_per_s < WORTH * tokens_per_s(even, goal):
        chosen, compared = even, ""
    elif even is not None:
        compared = f", {tokens_per_s(even, goal, PLAIN):.1f} with an even division"
    plain = tokens_per_s(chosen, goal, PLAIN)
    return Division(goal, fleet, draft_node, tuple(stages), chosen.split, plain, compared)


def choose(goal: Goal, fleet: Fleet, draft_node: str, others: Sequence[str] = ()) -> Division:
    """Return the best stages among the devices of a fleet, of which the draft node may be the first.

    others: devices that are to draft instead where that is clearly faster, or nothing fits otherwise.

    Raises:
        CapacityError: when the model does not fit on these devices.
    """
    anyone = plan(goal, fleet, Search(leaders=(draft_node, *others)))
    made = anyone
    if anyone.best.layout.draft_node != draft_node:
        try:
            made = plan(goal, fleet, Search(leaders=(draft_node,)))
        except CapacityError:
            return _division(anyone, fleet)
        if anyone.best.tokens_per_s >= WORTH * made.best.tokens_per_s:
            return _division(anyone, fleet)
    if set(made.best.layout.stages) == set(fleet.devices) - {draft_node}:
        return divide(goal, fleet, draft_node, made.best.layout.stages)
    return _division(made, fleet)


def _division(made: Plan, fleet: Fleet) -> Division:
    layout = made.best.layout
    return Division(
        made.goal,
        fleet,
        layout.draft_node,
        layout.stages,
        layout.split,
        made.plain_tokens_per_s,
        left_out=made.left_out,
    )


def _pipeline(layout: Layout, goal: Goal, fleet: Fleet) -> PipelineProfile | None:
    try:
        return profile_of(layout, goal, fleet)
    except CapacityError:
        return None
