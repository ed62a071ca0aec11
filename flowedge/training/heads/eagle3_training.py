"""Training of an EAGLE-3 head, which predicts tokens for several steps on its own output.

The recipe is the published one (EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flowedge.drafting.heads.eagle3_head import Eagle3Head, save_eagle3_head
from flowedge.drafting.token_counts import TokenCounts
from flowedge.training.documents import Batch, TrainingText
from flowedge.training.heads.head_training import HeadTraining, LossSums
from flowedge.training.heads.unrolled import pass_on, step_weights, unrolled
from flowedge.training.target import TrainingTarget


class Eagle3Training(HeadTraining):
    """The training of an EAGLE-3 head on rows with its taps."""

    head: Eagle3Head

    def __init__(self, head: Eagle3Head, target: TrainingTarget, unroll: int, compute: torch.dtype) -> None:
        """Train each row through `unroll` steps."""
        super().__init__(head, target, compute, head.d2t + torch.arange(len(head.d2t)))
        self._proposable = torch.zeros(target.lm_head.vocab_size, dtype=torch.bool, device=target.device)
        self._proposable[self._ids] = True
        self._weights = step_weights(unroll)

    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: LossSums) -> None:  # noqa: ARG002
        """Leave out rows whose likeliest token the head cannot propose; see HeadTraining.backward."""
        hidden = self._target.lm_head.hidden_size
        steps = len(self._weights)
        rows = batch.rows.shape[1] - 1
        place, wanted = self._target_distributions(batch, batch.rows[..., :hidden])
        embedded = self._target.embed(np.pad(batch.tokens[:, 1:], ((0, 0), (0, steps - 1))))
        with self.products(batch.rows):
            states = self.head.true_states(batch.rows[:, :-1])
            outputs = list(unrolled(self.head, embedded, states, steps))
        # Backwards in two parts, so that only a piece's logits are in memory at a time.
        leaves = [output.detach().requires_grad_() for output in outputs]
        for step, leaf in enumerate(leaves):
            # Row t of this step predicts token t + 2 + step.
            due = F.pad(place[:, 2 + step :], (0, min(1 + step, rows)), value=-1)[:, :rows]
            chosen = (due >= 0).nonzero(as_tuple=True)
            for piece in self.pieces(len(chosen[0]), self.num_tokens):
                texts, at = (each[piece] for each in chosen)
                share = self._weights[step] / update_rows
                self._backward_logits(leaf[texts, at], wanted[due[texts, at]], share, sums)
        pass_on(outputs, leaves)

    def save(self, directory: Path) -> None:
        save_eagle3_head(self.head, directory)

    @torch.no_grad()
    def _target_distributions(self, batch: Batch, features: Tensor) -> tuple[Tensor, Tensor]:
        """The target's distributions for the tokens that are learnt.

        Returns:
            The row of each token's distribution or -1, int64 [texts, length]; and the distributions over the
            draft vocabulary, float32 [learnt tokens, draft_vocab].
        """
        place = torch.full(batch.counted.shape, -1, device=features.device)
        texts, at = batch.counted[:, 2:].nonzero(as_tuple=True)
        distributions: list[Tensor] = []
        learnt: list[Tensor] = []
        for piece in self.pieces(len(texts), self._target.lm_head.vocab_size):
            logits = self._target.lm_head.differentiable_logits(features[texts[piece], at[piece] + 1])
            proposable = self._proposable[logits.argmax(dim=-1)]
            learnt.append(proposable)
            distributions.append(self.of_tokens(logits[proposable]).softmax(dim=-1))
        chosen = torch.cat(learnt)
        place[texts[chosen], at[chosen] + 2] = torch.arange(int(chosen.sum()), device=features.device)
        return place, torch.cat(distributions)

    def _backward_logits(self, states: Tensor, wanted: Tensor, share: float, sums: LossSums) -> None:
        with self.products(states):
            logits = self.head.logits(states)
        loss = F.cross_entropy(logits, wanted, reduction="sum")
        torch.autograd.backward(share * loss)
        sums.share += share * len(states)
        sums.token += share * loss.item()
        sums.agreed += share * float((logits.argmax(dim=-1) == wanted.argmax(dim=-1)).sum())


def draft_vocabulary(documents: Sequence[TrainingText], vocab: int, size: int) -> Tensor:
    """The `size` most frequent tokens in the assistant's texts, of `vocab`; int64, ascending."""
    counts = TokenCounts(vocab)
    for document in documents:
        counts.add(document.tokens[document.counted])
    return torch.from_numpy(np.sort(counts.most_frequent(size)))
