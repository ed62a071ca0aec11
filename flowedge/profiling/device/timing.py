"""Timing a piece of work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def median_s(
    run: Callable[[], object],
    repeats: int,
    *,
    prepare: Callable[[], object] = lambda: None,
    finish: Callable[[], object] = lambda: None,
) -> float:
    """The median of `repeats` timings of `run` in seconds, after one or two runs that are not counted.

    prepare: called before each run, outside of its time; finish: after it, inside, to wait for a GPU.
    """
    warm_up = min(repeats, 2)
    times = []
    for number in range(warm_up + repeats):
        prepare()
        started = time.perf_counter()
        run()
        finish()
        if number >= warm_up:
            times.append(time.perf_counter() - started)
    return statistics.median(times)
