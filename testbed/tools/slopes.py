"""Whether the memory of a process grows on: the slope of what it holds, which goes up and down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

Sample = tuple[float, float]
"""A place on a line, such as a time or a number of messages, and the memory that a process held there."""


def slope(samples: Sequence[Sample]) -> float:
    """Return the memory that is added per unit of the line: the median slope between any two samples.

    This is the estimate of Theil and Sen, which a step or a few peaks do not change. A process that goes up
    and down between two bounds has about 0.
    """
    return median(
        (later - sooner) / (end - begin)
        for (begin, sooner), (end, later) in itertools.combinations(samples, 2)
        if end > begin
    )
