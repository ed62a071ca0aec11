"""The division of a model's layers over given stages."""

from __future__ import annotations

from collections.abc import Sequence


def divided(
    layers: int, times: Sequence[float], most: Sequence[int], bound: float, fixed: Sequence[float] = ()
) -> list[int] | None:
    """Return the layers of each stage with the least sum of times; None if they do not fit.

    Args:
        times: seconds of a layer on each stage; most: layers that it can hold.
        bound: seconds that no stage may take longer than.
        fixed: seconds of each stage beside its layers; none if not given.
    """
    caps = _caps(times, most, bound, fixed or [0.0] * len(times))
    if min(caps) < 1 or sum(caps) < layers or layers < len(caps):
        return None
    split, left = [1] * len(caps), layers - len(caps)
    for stage in sorted(range(len(caps)), key=lambda stage: times[stage]):
        more = min(caps[stage] - 1, left)
        split[stage] += more
        left -= more
    return split


def least_bound(
    layers: int, times: Sequence[float], most: Sequence[int], fixed: Sequence[float] = ()
) -> float | None:
    """Return the least time of the slowest stage over all divisions; None if the layers do not fit."""
    fixed = fixed or [0.0] * len(times)
    if min(most) < 1 or sum(most) < layers or layers < len(most):
        return None
    limits = {*zip(times, most, fixed, strict=True)}
    bounds = sorted({own + time * count for time, cap, own in limits for count in range(1, cap + 1)})
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        caps = _caps(times, most, bounds[middle], fixed)
        if min(caps) < 1 or sum(caps) < layers:
            low = middle + 1
        else:
            high = middle
    return bounds[low]


def _caps(times: Sequence[float], most: Sequence[int], bound: float, fixed: Sequence[float]) -> list[int]:
    """Return how many layers each stage can hold, and compute within the bound."""
    if bound == float("inf"):
        return list(most)
    each = zip(times, most, fixed, strict=True)
    return [min(cap, int((bound - own) / time + 1e-9)) for time, cap, own in each]
