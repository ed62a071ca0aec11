"""How long sessions take, and from that how long a request will wait."""

from __future__ import annotations

from collections import deque
from statistics import fmean

RECENT = 32  # ended sessions that are averaged
LEAST_S = 1.0  # of an expected wait: a client that tries again at once finds nothing new


class SessionTimes:
    """The beginnings of the open sessions and the durations of the latest ended ones.

    Times are seconds of one clock.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._durations: deque[float] = deque(maxlen=RECENT)

    def begin(self, session: str, now: float) -> None:
        self._began[session] = now

    def end(self, session: str, now: float) -> None:
        self._durations.append(now - self._began.pop(session))

    def expected_s(self, place: int, now: float) -> float:
        """Return the seconds after which a request is expected to be opened.

        The estimate: the open sessions end evenly spread over the mean duration, and each end opens one
        request. The mean is of the latest ended sessions, and of the open ones that have taken longer
        already; their sizes are not looked at.

        Args:
            place: of the request in the queue, 1 for the first.
        """
        ages = [now - began for began in self._began.values()]
        if not ages:
            return LEAST_S
        ended = list(self._durations)
        known = [*ended, *(age for age in ages if not ended or age > fmean(ended))]
        return max(LEAST_S, fmean(known) * place / len(ages))
