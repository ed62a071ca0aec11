"""The split of a model: how many layers each stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from flowedge.core.errors import BadRequestError
from flowedge.core.plain_text import counted

MUCH_LESS = 0.8  # of the time of the slowest stage


def even_split(layers: int, stages: int, *, larger_first: bool = False) -> list[int]:
    """Return the layers of each stage, as even as possible.

    The first stage also holds the embedding and the last the final norm, so the stages between them get the
    remaining layers first; with `larger_first` the first stages do.

    Raises:
        BadRequestError: when there is no stage, or there are fewer layers than stages.
    """
    if stages < 1:
        raise BadRequestError(
            f"a model cannot be split over {counted(stages, 'stage')}; at least one is needed"
        )
    if layers < stages:
        raise BadRequestError(
            f"{counted(layers, 'layer')} cannot be split over {counted(stages, 'stage')}; use at most "
            f"{layers}"
        )
    counts = [layers // stages] * stages
    between_first = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    favoured = range(stages) if larger_first else between_first
    for stage in favoured[: layers % stages]:
        counts[stage] += 1
    return list(counts)


def layers_beside_head(layers: int, stages: int, head_layers: float) -> int:
    """Return the layers of a last stage with the LM head, so that all stages take about as long.

    Args:
        layers: of the model, not fewer than stages; stages: 2 or more.
        head_layers: the time of the LM head in times of a layer.
    """
    alike = (layers + head_layers) / stages - head_layers
    return min(max(round(alike), 1), layers - stages + 1)


def split_beside_head(layers: int, stages: int, head_layers: float, *, surely: bool) -> list[int]:
    """Return the layers of each stage where the last one has the LM head, so that all take about as long.

    Args:
        layers: of the model; stages: 1 or more.
        head_layers: the time of the LM head in times of a layer.
        surely: whether the head lies there; where it may lie on the draft node as well, the split is even
            unless the slowest stage gains much.

    Raises what `even_split` raises.
    """
    even = even_split(layers, stages)
    if stages == 1:
        return even
    last = layers_beside_head(layers, stages, head_layers)
    found = [*even_split(layers - last, stages - 1), last]
    slowest, before = (max(*split, split[-1] + head_layers) for split in (found, even))
    return found if surely or slowest <= MUCH_LESS * before else even


def split_counts(text: str) -> list[int]:
    """Return the numbers of a text such as "2,3,3".

    Raises:
        BadRequestError: when the text is malformed.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadRequestError(f"the split is {text!r}; give the layers of each stage, such as 2,3,3")
    return [int(part) for part in parts]


def check_split(counts: Sequence[int], layers: int | None, stages: int | None) -> list[int]:
    """Return the counts unchanged.

    Args:
        layers, stages: of the pipeline; None for a number that is not known yet.

    Raises:
        BadRequestError: when they are not one count for each stage, or do not add up to the layers.
    """
    split = ",".join(map(str, counts))
    if stages not in (None, len(counts)):
        raise BadRequestError(
            f"the split {split} is for {counted(len(counts), 'stage')}, but there are {stages}"
        )
    if min(counts) < 1:
        raise BadRequestError(f"the split {split} leaves a stage without a layer")
    if layers not in (None, sum(counts)):
        raise BadRequestError(
            f"the split {split} adds up to {sum(counts)} layers, but the model has {layers}"
        )
    return list(counts)


def layer_ranges(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the half-open range of layers of each stage."""
    return list(pairwise([0, *accumulate(counts)]))


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
