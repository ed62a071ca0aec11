"""The acceptance length of a head, measured by decoding with the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.sampling import SamplingParams
from flowedge.training.targets.target import Question, TrainingTarget

NEW_TOKENS = 64  # the most tokens of each answer
STRATEGY = "naive_pp"


@dataclass(frozen=True)
class AcceptanceLength:
    """The tokens of the answers to some prompts, and the draft-verify cycles they took."""

    prompts: int
    tokens: int
    cycles: int

    @property
    def length(self) -> float:
        """The mean tokens of a cycle, accepted and bonus tokens; 0 without cycles."""
        return self.tokens / self.cycles if self.cycles else 0.0


def evaluate(
    target: TrainingTarget, head: Path, prompts: Sequence[list[int]], advance: Callable[[int, int], None]
) -> AcceptanceLength:
    """Measure the acceptance of a saved head on prompts of token ids, at temperature 0.

    `advance` is called with the number of finished prompts and of all prompts. Errors as in
    TrainingTarget.decode.
    """
    questions = [Question(prompt, SamplingParams(), NEW_TOKENS) for prompt in prompts]
    tokens = cycles = 0
    for done, counters in enumerate(target.decode(head, questions, STRATEGY), 1):
        rounds = counters.accepted_per_round
        tokens, cycles = tokens + sum(rounds), cycles + len(rounds)
        advance(done, len(prompts))
    return AcceptanceLength(len(prompts), tokens, cycles)
