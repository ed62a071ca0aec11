"""When the requests of a load are asked: by clients that wait for their answers, or at random times.

Arrivals read no clock. A driver tells them what happened, and is told which requests to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol

from flowedge_testbed.load.requests import RequestList

LoadKind = Literal["clients", "arrivals_per_s"]


LEAST_WAIT_S = 1.0  # until a client asks again that was refused, however soon it is told to try


@dataclass(frozen=True)
class LoadPoint:
    """How much is asked of a pipeline: a number of clients, or a rate of arrivals in requests a second."""

    kind: LoadKind
    value: float

    @property
    def label(self) -> str:
        if self.kind == "clients":
            return "1 client" if self.value == 1 else f"{self.value:g} clients"
        return f"{self.value:g} requests/s"


@dataclass(frozen=True)
class Arrival:
    """A request that is to be started, with times in seconds since the load began.

    Attributes:
        asked: when its client asks it; begins: when it is handed to the pipeline.
    """

    number: int
    asked: float
    begins: float


class Arrivals(Protocol):
    """The source of the requests of one run."""

    def first(self) -> list[Arrival]:
        """Return the requests that the load begins with."""

    def begun(self, arrival: Arrival) -> list[Arrival]:
        """Return the requests that follow from the start of one."""

    def ended(self, number: int, now: float) -> list[Arrival]:
        """Return the requests that follow from the end of one at `now`."""


class ClosedLoop:
    """Clients that each ask the next request of the list when their answer is complete."""

    def __init__(self, requests: RequestList, clients: int, think_s: float) -> None:
        """think_s: mean time that a client waits after an answer."""
        self._requests = requests
        self._think_s = think_s
        self._clients = clients
        self._numbers = count()

    def first(self) -> list[Arrival]:
        return [Arrival(number, 0.0, 0.0) for number in _next(self._numbers, self._clients)]

    def begun(self, arrival: Arrival) -> list[Arrival]:  # noqa: ARG002
        return []

    def ended(self, number: int, now: float) -> list[Arrival]:  # noqa: ARG002
        following = next(self._numbers)
        asked = now + self._think_s * self._requests.request(following).pause
        return [Arrival(following, asked, asked)]


class StaticBatches:
    """The clients of a closed loop before a server that begins a batch when all of the last has ended.

    A client whose answer is complete asks again, and waits until the batch begins.
    """

    def __init__(self, requests: RequestList, clients: int, think_s: float) -> None:
        self._requests = requests
        self._think_s = think_s
        self._clients = clients
        self._numbers = count()
        self._waiting: list[tuple[int, float]] = []  # numbers of asked requests, and when they are asked

    def first(self) -> list[Arrival]:
        return [Arrival(number, 0.0, 0.0) for number in _next(self._numbers, self._clients)]

    def begun(self, arrival: Arrival) -> list[Arrival]:  # noqa: ARG002
        return []

    def ended(self, number: int, now: float) -> list[Arrival]:  # noqa: ARG002
        following = next(self._numbers)
        self._waiting.append((following, now + self._think_s * self._requests.request(following).pause))
        if len(self._waiting) < self._clients:
            return []
        batch, self._waiting = self._waiting, []
        begins = max(asked for _, asked in batch)
        return [Arrival(member, asked, begins) for member, asked in batch]


class PoissonArrivals:
    """Requests at independent random times, whatever has become of the requests before them."""

    def __init__(self, requests: RequestList, per_s: float) -> None:
        self._requests = requests
        self._per_s = per_s

    def first(self) -> list[Arrival]:
        return [self._at(0, 0.0)]

    def begun(self, arrival: Arrival) -> list[Arrival]:
        return [self._at(arrival.number + 1, arrival.asked)]

    def ended(self, number: int, now: float) -> list[Arrival]:  # noqa: ARG002
        return []

    def _at(self, number: int, after: float) -> Arrival:
        asked = after + self._requests.request(number).pause / self._per_s
        return Arrival(number, asked, asked)


def _next(numbers: Iterator[int], how_many: int) -> list[int]:
    return [next(numbers) for _ in range(how_many)]
