"""The parts of a layer's time; pure arithmetic. Times are seconds of one layer, by rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from flowedge.profiling.measurement import short

_LEAST_LAYER = 0.1  # share of its measured time that a layer keeps, however the timings scatter


def forward_seconds(several: Mapping[int, float], single: Mapping[int, float], layers: int) -> float:
    """Return what a forward takes beside its layers, from blocks of `layers` layers and of a single layer.

    Args:
        several, single: the time of a forward over the number of its layers; `single` may be empty.
    """
    # n layers take f + n * l, and a single layer takes f + l.
    found = [layers * (single[rows] - several[rows]) / (layers - 1) for rows in single]
    most = (1 - _LEAST_LAYER) * layers * min(several.values())
    return min(max(statistics.median(found), 0.0), most) if found else 0.0


def without_forward(times: Mapping[int, float], forward: float, layers: int) -> dict[int, float]:
    """Return the times of layers alone, from the time of a forward over the number of its layers.

    Where `forward` was found from other timings than `times`, a layer keeps at least a tenth of its time.
    """
    return {rows: max(seconds - forward / layers, _LEAST_LAYER * seconds) for rows, seconds in times.items()}


def attention_ms(far: Mapping[int, float], near: Mapping[int, float], cached: int) -> dict[int, float]:
    """Return the milliseconds that reading `cached` rows takes in a layer.

    Args:
        far: times after `cached` rows; near: times after so few rows that they take no time.
    """
    return {rows: short(1e3 * max(far[rows] - near[rows], 0.0)) for rows in far if cached}
