"""Requests of all kinds that are asked for at once: strategies, samplings, lengths, starts and cancels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flowedge.core.request import Finished, Output, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.strategies.registry import STRATEGIES, make_strategy

TOGETHER = tuple(name for name in STRATEGIES if not make_strategy(name, {}).computed_alone)
PROMPT_LENGTHS = (1, 2, 9, 30, 40, 64, 129)
LONG_PROMPT = 400


@dataclass(frozen=True)
class MixedSession:
    """A request with the times at which it is asked for and cancelled.

    Attributes:
        start: seconds from the begin; cancel_after: seconds from the start, None where it is not cancelled.
    """

    request: Request
    start: float
    cancel_after: float | None

    def check(self, outputs: Sequence[Output], alone: Sequence[int]) -> int:
        """Check the outputs of the session against its tokens alone, and return how many were put out."""
        got = [token for output in outputs if isinstance(output, Tokens) for token in output.token_ids]
        if outputs and isinstance(outputs[-1], Finished):
            assert got == list(alone), self
        else:
            assert self.cancel_after is not None, (self, outputs[-1:])
            assert all(isinstance(output, Tokens) for output in outputs), (self, outputs[-1])
            assert got == list(alone[: len(got)]), self
        return len(got)


def random_sampling(rng: np.random.Generator) -> SamplingParams:
    temperature = float(rng.choice([0.0, 0.7, 1.0]))
    if not temperature:
        return SamplingParams()
    top_k, top_p = int(rng.choice([0, 20])), float(rng.choice([1.0, 0.9]))
    return SamplingParams(temperature, top_k, top_p, int(rng.integers(0, 2**62)))


def mixed_sessions(
    rng: np.random.Generator,
    prompt: Callable[[int], tuple[int, ...]],
    most_tokens: int,
    span_s: float,
) -> list[MixedSession]:
    """Return eight sessions, of which one has a long prompt, and about a quarter are cancelled.

    Five of them may be computed together; the others have any strategy.

    Args:
        prompt: returns a text of so many tokens, 1 or more.
        span_s: the time within which they are asked for, and after which most cancels have come.
    """
    found = []
    names = [*("auto",) * 2, *rng.choice(TOGETHER, size=3), *rng.choice(STRATEGIES, size=3)]
    for index, name in enumerate(rng.permutation(names)):
        length = LONG_PROMPT if index == 0 else int(rng.choice(PROMPT_LENGTHS))
        offset = int(rng.integers(0, 50))
        request = Request(
            session=f"s{index}",
            prompt=prompt(offset + length)[offset:],
            sampling=random_sampling(rng),
            max_new_tokens=int(rng.integers(most_tokens // 3, most_tokens + 1)),
            strategy=str(name),
        )
        cancel_after = float(rng.random() * 2 * span_s) if rng.random() < 0.25 else None
        found.append(MixedSession(request, float(rng.random() * span_s), cancel_after))
    return found
