"""What segments take on the links, as far as trips show that may have waited for others."""

from __future__ import annotations

import math

import numpy as np

from flowedge.core.arrays import FloatArray


class LinkBound:
    """The least time that a row alone has taken, and the least time for each row that others have taken.

    A segment that waits in front of a stage takes longer than its way over the links, never less. So the
    least of many trips is close to the links' own time, for segments whose rows are pruned on their way.
    """

    def __init__(self) -> None:
        self._alone = math.inf
        self._each = math.inf

    @property
    def known(self) -> bool:
        """Whether a trip was observed."""
        return not math.isinf(min(self._alone, self._each))

    def observe(self, rows: int, seconds: float) -> None:
        """Take in the time of a trip of a segment of 1 row or more, less that of its forwards."""
        if rows == 1:
            self._alone = min(self._alone, seconds)
        else:
            self._each = min(self._each, seconds / rows)

    def curve(self, most: int) -> FloatArray:
        """Return the seconds of 1 to `most` rows: float64 [most], rising; 0 while nothing is known."""
        alone, each = (0.0 if math.isinf(least) else least for least in (self._alone, self._each))
        times: FloatArray = alone + each * np.arange(most, dtype=np.float64)
        return times
