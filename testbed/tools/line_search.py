"""A search along one parameter after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Values: TypeAlias = dict[str, float]  # of all parameters, by name
Score = Callable[[Sequence[Values]], list[float]]  # of each set of values; higher is better


@dataclass(frozen=True)
class Step:
    """One line of a search.

    Attributes:
        parameter: the parameter that was varied.
        scores: by its value.
        chosen: the value that was chosen.
    """

    parameter: str
    scores: dict[float, float]
    chosen: float


def line_search(space: Mapping[str, Sequence[float]], start: Values, score: Score, rounds: int) -> list[Step]:
    """Set each parameter to its best value in turn, until a whole round changes nothing.

    The present value of a parameter is tried too, and stays unless another value is better.

    Args:
        space: values to try, by parameter, in the order of the search.
        start: values of all parameters in `space`.
        rounds: most rounds.
    """
    values, steps = dict(start), []
    for _ in range(rounds):
        before = dict(values)
        for parameter, tried in space.items():
            line = list(dict.fromkeys([values[parameter], *tried]))
            found = score([{**values, parameter: value} for value in line])
            scores = dict(zip(line, found, strict=True))
            values[parameter] = max(line, key=lambda value: scores[value])
            steps.append(Step(parameter, scores, values[parameter]))
        if values == before:
            break
    return steps


def outcome(start: Values, steps: Sequence[Step]) -> Values:
    """Return the values after a search."""
    return {**start, **{step.parameter: step.chosen for step in steps}}
