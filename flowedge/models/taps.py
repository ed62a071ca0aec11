"""Taps: the layers whose inputs a drafter needs, and the width that they give to rows between stages.

A row that leaves the layers [0, layer) has the width hidden * (1 + t): the hidden state, then the inputs of
the t tapped layers below `layer`, in layer order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flowedge.core.errors import BadRequestError

Taps = tuple[int, ...]  # layer indices, ascending; empty where no drafter needs any

_SEGMENT_ROWS = 16  # draft rows of a usual segment
LEAST_LAYERS = 7  # with fewer layers, EAGLE-3's three taps would not ascend


def eagle3_taps(num_layers: int) -> Taps:
    """The three layers whose inputs an EAGLE-3 head drafts from.

    Raises:
        BadRequestError: when the model has too few layers.
    """
    if num_layers < LEAST_LAYERS:
        raise BadRequestError(
            f"an EAGLE-3 head drafts from three layers of a model of {LEAST_LAYERS} layers or more; "
            f"this one has {num_layers}"
        )
    return 2, num_layers // 2, num_layers - 3


def spread_taps(num_layers: int, count: int) -> Taps:
    """Up to `count` layers whose inputs a block head drafts from: spread evenly, without the last layers."""
    last = max(num_layers - 2, 1)
    first = min(2, last)
    return tuple(sorted({first + round((last - first) * i / max(count - 1, 1)) for i in range(count)}))


def check_taps(taps: Sequence[int], num_layers: int) -> Taps:
    """Return `taps` as a tuple.

    Raises:
        BadRequestError: when they do not ascend within [0, num_layers).
    """
    if any(a >= b for a, b in pairwise(taps)) or not all(0 <= tap < num_layers for tap in taps):
        raise BadRequestError(f"taps {list(taps)} do not ascend within the model's {num_layers} layers")
    return tuple(taps)


def taps_within(taps: Sequence[int], start: int, stop: int) -> Taps:
    return tuple(tap for tap in taps if start <= tap < stop)


def tapped_values(hidden: int, taps: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """The place in a whole row of what the layers [start, stop) tap: its first value, and the one behind it.

    These are also the widths of the rows that the layers take and hand on.
    """
    return row_width(hidden, taps, start), row_width(hidden, taps, stop)


def retained_values(
    hidden: int, taps: Sequence[int], blocks: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The `tapped_values` of each block that taps anything.

    blocks: the first layer of each block and the one behind its last, of stages that keep what they tap.
    """
    places = [tapped_values(hidden, taps, *block) for block in blocks]
    return tuple((first, behind) for first, behind in places if first < behind)


def keeping_pays(
    hidden: int,
    taps: Sequence[int],
    blocks: Sequence[tuple[int, int]],
    value_s: Sequence[float],
    round_trip_s: float,
) -> bool:
    """Return whether stages should keep what they tap of draft rows until the rows are accepted.

    Every segment is shorter then on every link. But the drafter waits for the taps of a row from which it
    begins anew.

    Args:
        blocks: as in `retained_values`; value_s: seconds that a value takes on the link behind each block.
        round_trip_s: from the draft node to a stage and back.
    """
    carried = [hidden * len(taps_within(taps, 0, stop)) for _, stop in blocks]
    saved = sum(values * seconds for values, seconds in zip(carried, value_s, strict=True))
    return _SEGMENT_ROWS * saved > round_trip_s


def row_width(hidden: int, taps: Sequence[int], layer: int) -> int:
    """The width of the rows that leave the layers [0, layer)."""
    return hidden * (1 + len(taps_within(taps, 0, layer)))
