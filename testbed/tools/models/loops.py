"""Training against loops: the model's own answers, in which repeated runs of tokens are made less likely.

Unlikelihood training on whole answers (Welleck et al., "Neural Text Generation with Unlikelihood Training",
section 5.2).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from flowedge.training.self_generation import LOOP_WINDOW, is_looping
from testbed.tools.models.batched_decoding import continuations
from testbed.tools.models.replicas import Replicas, twin

ANSWERED, REPEATED = 1, 2  # kinds of tokens


@dataclass(frozen=True)
class LoopTraining:
    """How a training goes against loops.

    Attributes:
        weight: of the second loss.
        every: steps between answers.
        prompts: asked at once.
        new_tokens: most tokens of an answer.
        rows: looping answers in a step.
    """

    weight: float
    every: int = 20
    prompts: int = 64
    new_tokens: int = 160
    rows: int = 4


class OwnAnswers:
    """The looping answers of the model as it was a few steps ago, at temperature 0.

    Attributes:
        share: of the last answers, that loop.
    """

    def __init__(
        self, replicas: Replicas[LlamaForCausalLM], prompts: Iterator[list[list[int]]], settings: LoopTraining
    ) -> None:
        self.settings, self.share = settings, 0.0
        self._prompts, self._pool = prompts, replicas.pool
        self._writers = [twin(replicas.module).train(False) for _ in replicas.copies]
        self._looping: list[tuple[list[int], list[int]]] = []
        self._random = random.Random(0)

    def renew(self) -> None:
        """Have the model answer further prompts."""
        asked = [next(self._prompts) for _ in self._writers]
        settings = self.settings
        written = list(
            self._pool.map(
                lambda writer, part: continuations(writer, part, 0.0, settings.new_tokens),
                self._writers,
                asked,
            )
        )
        pairs = [
            pair
            for part, answers in zip(asked, written, strict=True)
            for pair in zip(part, answers, strict=True)
        ]
        self._looping = [pair for pair in pairs if is_looping(pair[1])]
        self.share = len(self._looping) / len(pairs)

    def batch(self) -> list[tuple[Tensor, float]]:
        """Return some looping answers behind their prompts, and the weight of their loss, if any loops.

        The weight falls as loops become rare, so that no more is unlearned than the loops that there are.

        Returns:
            A tensor, int64 [2, rows, length]: token ids, padded at the end; and ANSWERED, or REPEATED, or 0.
        """
        if not self._looping:
            return []
        chosen = self._random.sample(self._looping, min(self.settings.rows, len(self._looping)))
        length = max(len(prompt) + len(answer) for prompt, answer in chosen)
        batch = torch.zeros((2, len(chosen), length), dtype=torch.int64)
        for row, (prompt, answer) in enumerate(chosen):
            start, end = len(prompt), len(prompt) + len(answer)
            batch[0, row, :end] = torch.tensor([*prompt, *answer])
            batch[1, row, start:end] = torch.where(torch.tensor(repeated(answer)), REPEATED, ANSWERED)
        return [(batch, self.settings.weight * self.share)]


def unlikelihood(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Return -log(1 - p) of repeated tokens in a batch of OwnAnswers, as a mean over the answers' tokens."""
    tokens, kinds = batch[0], batch[1, :, 1:]
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    others = logits.scatter(-1, tokens[:, 1:, None], -torch.inf)
    unlikely = logits.logsumexp(-1) - others.logsumexp(-1)  # whose gradient stays where p is 1
    loss: Tensor = unlikely[kinds == REPEATED].sum() / (kinds > 0).sum()
    return loss


def repeated(tokens: Sequence[int]) -> list[bool]:
    """Return which tokens belong to a run of LOOP_WINDOW tokens that has occurred before."""
    seen: set[tuple[int, ...]] = set()
    marked = [False] * len(tokens)
    for start in range(len(tokens) - LOOP_WINDOW + 1):
        run = tuple(tokens[start : start + LOOP_WINDOW])
        if run in seen:
            marked[start : start + LOOP_WINDOW] = [True] * LOOP_WINDOW
        seen.add(run)
    return marked
