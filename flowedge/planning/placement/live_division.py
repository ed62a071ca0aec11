"""The division of a model's layers over the agents of a pipeline, by what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowedge.core.errors import CapacityError
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import Layout
from flowedge.planning.placement.plan import division
from flowedge.planning.placement.score import profile_of, tokens_per_s
from flowedge.planning.split import even_split

WORTH = 1.05  # how many times as fast an uneven division has to be; measurements scatter


@dataclass(frozen=True)
class Division:
    """The layers of each stage.

    Attributes:
        tokens_per_s: that are expected.
        even_tokens_per_s: with the layers divided evenly; None where that does not fit.
    """

    split: tuple[int, ...]
    tokens_per_s: float
    even_tokens_per_s: float | None

    def __str__(self) -> str:
        layers, even = ", ".join(map(str, self.split)), self.even_tokens_per_s
        beside = "an even division does not fit" if even is None else f"{even:.1f} with an even division"
        return f"{layers} layers by what stages measured: {self.tokens_per_s:.1f} tokens/s expected, {beside}"


@dataclass(frozen=True)
class KnownDivision:
    """How the layers of a model were divided the last time."""

    model: str
    split: tuple[int, ...]


def divide(goal: Goal, fleet: Fleet, draft_node: str, stages: Sequence[str]) -> Division:
    """Return the division with the most tokens a second; an even one unless another is clearly faster.

    Raises:
        CapacityError: when the model does not fit on these stages.
    """
    best, *_ = division(goal, fleet, draft_node, stages)
    evenly = tuple(even_split(goal.model.layers, len(stages)))
    even = _tokens_per_s(replace(best.layout, split=evenly), goal, fleet)
    if even is not None and best.tokens_per_s < WORTH * even:
        return Division(evenly, even, even)
    return Division(best.layout.split, best.tokens_per_s, even)


def _tokens_per_s(layout: Layout, goal: Goal, fleet: Fleet) -> float | None:
    try:
        return tokens_per_s(profile_of(layout, goal, fleet), goal)
    except CapacityError:
        return None
