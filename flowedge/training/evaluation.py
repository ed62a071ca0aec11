"""How much a head foresees: the acceptance length, by the whole machinery in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.drafting.loading import Target, load_drafter
from flowedge.models.tokenizer import StreamDecoder
from flowedge.runtime.costs import FixedCosts
from flowedge.runtime.in_process import virtual_pipeline
from flowedge.runtime.request import Finished, Request
from flowedge.sampling import SamplingParams
from flowedge.training.target import TrainingTarget

NEW_TOKENS = 64  # of each answer
STRATEGY = "naive_pp"


@dataclass(frozen=True)
class Acceptance:
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
) -> Acceptance:
    """The acceptance of a saved head on prompts of token ids, at temperature 0.

    `advance` is told how many prompts are done, and of how many. Errors as in load_drafter.
    """
    drafter = load_drafter(
        str(head), Target(target.checkpoint, target.lm_head, target.tokenizer, target.block.dtype)
    )
    tokens = cycles = 0
    for index, prompt in enumerate(prompts):
        pipeline = virtual_pipeline(
            target.checkpoint,
            [target.block.num_layers],
            FixedCosts(),
            drafter=drafter,
            head=target.lm_head,
            make_text=lambda: StreamDecoder(target.tokenizer),
            blocks=[target.block],
        )
        request = Request(
            f"e{index}", tuple(prompt), SamplingParams(), NEW_TOKENS, target.eos, strategy=STRATEGY
        )
        for timed in pipeline.generate(request):
            if isinstance(timed.output, Finished):
                rounds = timed.output.counters.accepted_per_round
                tokens, cycles = tokens + sum(rounds), cycles + len(rounds)
        advance(index + 1, len(prompts))
    return Acceptance(len(prompts), tokens, cycles)
