"""The requests of a load in their order: prompts, seeds, lengths and pauses, all from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
        new_tokens: the least and the most of a request's `max_new_tokens`, which is drawn evenly.
    """

    prompts: tuple[tuple[int, ...], ...]
    temperature: float
    seed: int
    new_tokens: tuple[int, int]

    def request(self, number: int) -> LoadRequest:
        """Return the request with this number, from 0 on."""
        turn, place = divmod(number, len(self.prompts))
        order = list(range(len(self.prompts)))
        random.Random(f"{self.seed}/turn/{turn}").shuffle(order)
        drawn = random.Random(f"{self.seed}/request/{number}")
        # At temperature 0 a seed changes nothing, and requests of one prompt share their true path.
        seed = self.seed * 1_000_003 + number if self.temperature > 0 else 0
        return LoadRequest(
            number,
            self.prompts[order[place]],
            SamplingParams(temperature=self.temperature, seed=seed),
            drawn.randint(*self.new_tokens),
            drawn.expovariate(1.0),
        )
