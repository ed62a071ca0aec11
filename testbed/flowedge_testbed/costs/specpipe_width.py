"""The width of SpecPipe's tree, from a profile (specpipe, section 3.3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

TimeOfRows = Callable[[int], float]
"""Seconds that a number of rows takes."""


def time_between_tokens(
    width: int, stages: Sequence[TimeOfRows], draft: TimeOfRows, hit_rate: Callable[[int], float]
) -> float:
    """Expected seconds from one token to the next (equation 1).

    The formula has lost its symbols in our copy of the paper. By the text around it: a token costs one
    pipeline step, whether or not it was predicted; and with probability 1 - hit_rate(width) the pipeline is
    empty after it, and has to be refilled before the next:

        max_i T_i(width) + (1 - p(width)) * sum over the other steps of T_i(width)

    With equal stages this is equation 2: T(width) * (1 + (1 - p(width)) * (n - 1)).

    Args:
        width: rows of a level.
        stages: computing and handing on a level of so many rows, for each stage.
        draft: proposing the next level below so many rows; a step is no shorter.
        hit_rate: how often the drawn token is in a level of so many rows.
    """
    times = [stage(width) for stage in stages]
    refill = sum(times) - max(times)
    return max([*times, draft(width)]) + (1 - hit_rate(width)) * refill


def best_width(
    widths: Iterable[int],
    stages: Sequence[TimeOfRows],
    draft: TimeOfRows,
    hit_rate: Callable[[int], float],
) -> int:
    """The width with the shortest expected time between tokens, the narrowest of equals.

    Raises ValueError when there is no width or no stage to choose from.
    """
    choices = sorted(set(widths))
    if not choices or not stages:
        raise ValueError("a tree width is chosen from one width or more, for one stage or more")
    return min(choices, key=lambda width: time_between_tokens(width, stages, draft, hit_rate))
