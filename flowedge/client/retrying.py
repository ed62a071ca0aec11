"""Which failed requests are sent again, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from flowedge.core.errors import CapacityError, DeviceLostError, FlowEdgeError

_FIRST_S, _MOST_S = 0.2, 5.0  # of a pause


@dataclass
class Retries:
    """The further tries that a request has; only a request without any output is sent again.

    Attributes:
        left: number of further tries.
    """

    left: int
    _pause_s: float = _FIRST_S

    def pause_s(self, error: FlowEdgeError, left_s: float) -> float | None:
        """Take a further try; return the seconds to wait before it, None if there is none.

        Args:
            error: that ended the request before its first event.
            left_s: seconds that the answer may still take.
        """
        if not self.left:
            return None
        if isinstance(error, CapacityError):
            if error.retry_after_s is None:
                return None
            pause_s = error.retry_after_s
        elif isinstance(error, DeviceLostError):
            pause_s = self._pause_s * random.uniform(0.5, 1.0)
        else:
            return None
        if pause_s >= left_s:
            return None
        self.left -= 1
        self._pause_s = min(2 * self._pause_s, _MOST_S)
        return pause_s
