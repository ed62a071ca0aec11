"""How much a head foresees: the acceptance length, by the whole machinery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.sampling import SamplingParams
from flowedge.training.targets.target import Question, TrainingTarget

NEW_TOKENS = 64  # of each answer
STRATEGY = "naive_pp"


@dataclass(frozen=True)
class AcceptanceLength:
    """Tokens put out, in how many draft-verify cycles, over how many prompts."""

    prompts: int
    tokens: int
    cycles: int

    @property
    def length(self) -> float:
        """Accepted and bonus tokens of a cycle; 0 when there was none."""
        return self.tokens / self.cycles if self.cycles else 0.0


def evaluate(
    target: TrainingTarget, head: Path, prompts: Sequence[list[int]], advance: Callable[[int, int], None]
) -> AcceptanceLength:
    """The acceptance of a saved head on prompts of token ids, at temperature 0.

    `advance` is told how many prompts are done, and of how many. Errors as in TrainingTarget.decode.
    """
    questions = [Question(prompt, SamplingParams(), NEW_TOKENS) for prompt in prompts]
    tokens = cycles = 0
    for done, counters in enumerate(target.decode(head, questions, STRATEGY), 1):
        rounds = counters.accepted_per_round
        tokens, cycles = tokens + sum(rounds), cycles + len(rounds)
        advance(done, len(prompts))
    return AcceptanceLength(len(prompts), tokens, cycles)
