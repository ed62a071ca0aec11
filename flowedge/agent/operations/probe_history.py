"""Which announced agents to ask next, from what came of asking before. Times are seconds of one clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PAUSE_S, MOST_PAUSE_S = 10.0, 600.0  # before an agent that did not answer is asked again
MOST_NEW = 64  # agents that never answered, asked in one round
MOST_GOOD, MOST_BAD = 256, 4096  # agents that are remembered
_MOST_DOUBLINGS = 16  # of the pause; an agent may fail for weeks, and no float holds 2 ** 1024
_GIVE_UP = 5  # failures in succession after which an agent is no longer known to answer


@dataclass(frozen=True)
class Candidate:
    """An agent that may be idle.

    Attributes:
        id: of the device; empty for an agent that only the configuration names.
    """

    id: str
    address: str
    name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.id, self.address


@dataclass(frozen=True)
class _FailedProbes:
    count: int
    until: float  # when it may be asked again


class ProbeHistory:
    """Remembers agents that answered, and for a growing time the announcements without an agent behind.

    Anybody on the network can announce any number of agents. So agents that have answered once are asked
    first and always, and of the others a limited number in each round: those with the fewest failures first.
    """

    def __init__(self, shuffle: random.Random | None = None) -> None:
        """shuffle: decides the order of equals, which nobody else may foresee."""
        self._good: dict[tuple[str, str], tuple[Candidate, int]] = {}  # with failures since the last answer
        self._bad: dict[tuple[str, str], _FailedProbes] = {}
        self._shuffle = shuffle or random.SystemRandom()

    def known(self) -> list[Candidate]:
        """Return the agents that have answered, whether they are announced at present or not."""
        return [candidate for candidate, _ in self._good.values()]

    def newcomers(self, announced: Sequence[Candidate], now: float) -> list[Candidate]:
        """Return announced agents that have never answered, at most MOST_NEW, the most promising first."""
        due = [
            candidate
            for candidate in {each.key: each for each in announced}.values()
            if candidate.key not in self._good and self._failures(candidate).until <= now
        ]
        self._shuffle.shuffle(due)
        return sorted(due, key=lambda candidate: self._failures(candidate).count)[:MOST_NEW]

    def answered(self, candidate: Candidate) -> None:
        """Take in that an agent answered as the device that was announced."""
        self._bad.pop(candidate.key, None)
        self._good.pop(candidate.key, None)
        self._good[candidate.key] = candidate, 0
        while len(self._good) > MOST_GOOD:
            del self._good[next(iter(self._good))]

    def failed(self, candidate: Candidate, now: float) -> None:
        """Take in that no agent, or another agent, answered."""
        if candidate.key in self._good:
            _, failures = self._good[candidate.key]
            if failures + 1 < _GIVE_UP:
                self._good[candidate.key] = candidate, failures + 1
                return
            del self._good[candidate.key]
        count = self._failures(candidate).count + 1
        pause = min(FIRST_PAUSE_S * 2 ** min(count - 1, _MOST_DOUBLINGS), MOST_PAUSE_S)
        self._bad.pop(candidate.key, None)
        self._bad[candidate.key] = _FailedProbes(count, now + pause)
        while len(self._bad) > MOST_BAD:
            del self._bad[next(iter(self._bad))]

    def _failures(self, candidate: Candidate) -> _FailedProbes:
        return self._bad.get(candidate.key, _FailedProbes(0, float("-inf")))
