"""The requests of a load, when they are asked, by clients that wait or at random times, and their answers.

Arrivals read no clock. A driver tells them what happened, and is told which requests to start.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Literal, Protocol

from flowedge.core.sampling import SamplingParams


@dataclass(frozen=True)
class LoadRequest:
    """One request of a load.

    Attributes:
        number: its place in the list.
        pause: time before it is asked, as a multiple of the mean; the mean of all pauses is 1.
    """

    number: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    pause: float


@dataclass(frozen=True)
class RequestList:
    """An endless list of requests. The same values always give the same requests.

    All prompts are asked once in a shuffled order, then once more in another order, and so on.

    Attributes:
        sampling: of every request, but for its seed, which follows from this seed and the number.
        new_tokens: the least and the most of a request's `max_new_tokens`, which is drawn evenly.
    """

    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    new_tokens: tuple[int, int]

    def request(self, number: int) -> LoadRequest:
        """Return the request with this number, from 0 on."""
        turn, place = divmod(number, len(self.prompts))
        order = list(range(len(self.prompts)))
        base = self.sampling.seed
        random.Random(f"{base}/turn/{turn}").shuffle(order)
        drawn = random.Random(f"{base}/request/{number}")
        # At temperature 0 a seed changes nothing, and requests of one prompt share their true path.
        seed = 0 if self.sampling.greedy else base * 1_000_003 + number
        return LoadRequest(
            number,
            self.prompts[order[place]],
            replace(self.sampling, seed=seed),
            drawn.randint(*self.new_tokens),
            drawn.expovariate(1.0),
        )


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
        return [Arrival(number, 0.0, 0.0) for number in islice(self._numbers, self._clients)]

    def begun(self, arrival: Arrival) -> list[Arrival]:  # noqa: ARG002
        return []

    def ended(self, number: int, now: float) -> list[Arrival]:  # noqa: ARG002
        following = next(self._numbers)
        asked = now + self._think_s * self._requests.request(following).pause
        return [Arrival(following, asked, asked)]


class StaticBatches(ClosedLoop):
    """The clients of a closed loop before a server that begins a batch when all of the last has ended.

    A client whose answer is complete asks again, and waits until the batch begins.
    """

    def __init__(self, requests: RequestList, clients: int, think_s: float) -> None:
        super().__init__(requests, clients, think_s)
        self._waiting: list[Arrival] = []

    def ended(self, number: int, now: float) -> list[Arrival]:
        self._waiting += super().ended(number, now)
        if len(self._waiting) < self._clients:
            return []
        batch, self._waiting = self._waiting, []
        begins = max(member.asked for member in batch)
        return [Arrival(member.number, member.asked, begins) for member in batch]


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


@dataclass
class LoadAnswer:
    """One request and what came of it; times in seconds since the load began.

    Attributes:
        token_s: when each token came out; tokens of one event have the same time.
        ended_s: when the answer was complete for its client; None while it is not.
        admitted_s: when there was room for the request, if it waited for room; None if it did not.
        refused: whether there was no room for it, and it was told to try later.
    """

    arrival: Arrival
    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    admitted_s: float | None = None
    refused: bool = False

    def take(self, tokens: tuple[int, ...], now: float) -> None:
        """Add tokens that came out together."""
        self.tokens.extend(tokens)
        self.token_s.extend([now] * len(tokens))

    @property
    def digest(self) -> str:
        """A digest of the tokens, by which the outputs of methods are compared."""
        return hashlib.sha256(",".join(map(str, self.tokens)).encode()).hexdigest()[:16]
