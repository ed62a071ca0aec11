"""Training of an EAGLE-3 head: tokens alone are foreseen, for several steps on the head's own output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flowedge.drafting.heads.eagle3_head import Eagle3Head, save_eagle3_head
from flowedge.training.data.batch import Batch
from flowedge.training.data.documents import TrainingText
from flowedge.training.heads.head_training import HeadTraining, Sums
from flowedge.training.heads.recipe import STEP_DECAY
from flowedge.training.heads.unrolled import unrolled
from flowedge.training.targets.target import TrainingTarget


class Eagle3Training(HeadTraining):
    """See HeadTraining; the target's rows have the three taps of an EAGLE-3 head."""

    head: Eagle3Head

    def __init__(self, head: Eagle3Head, target: TrainingTarget, unroll: int, compute: torch.dtype) -> None:
        """unroll: steps that a row is trained through."""
        super().__init__(head, target.device, compute)
        self._target = target
        # The target's ids of the draft vocabulary.
        self._ids = head.d2t + torch.arange(len(head.d2t), device=target.device)
        self._proposable = torch.zeros(target.lm_head.vocab_size, dtype=torch.bool, device=target.device)
        self._proposable[self._ids] = True
        weights = STEP_DECAY ** torch.arange(unroll)
        self._weights: list[float] = (weights / weights.sum()).tolist()

    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: Sums) -> None:  # noqa: ARG002
        """As published, without noise, and without rows whose likeliest token the head cannot propose."""
        hidden = self._target.lm_head.hidden_size
        steps = len(self._weights)
        rows = batch.rows.shape[1] - 1
        place, wanted = self._wanted(batch, batch.rows[..., :hidden])
        embedded = self._target.embed(np.pad(batch.tokens[:, 1:], ((0, 0), (0, steps - 1))))
        with self.products(batch.rows):
            states = self.head.fc(batch.rows[:, :-1, hidden:])
            outputs = list(unrolled(self.head, embedded, states, steps))
        # Backwards in two parts, so that few rows have their logits in memory.
        leaves = [output.detach().requires_grad_() for output in outputs]
        for step, leaf in enumerate(leaves):
            # Row t of this step decides token t + 2 + step.
            due = F.pad(place[:, 2 + step :], (0, min(1 + step, rows)), value=-1)[:, :rows]
            chosen = (due >= 0).nonzero(as_tuple=True)
            for piece in self.pieces(len(chosen[0]), len(self._ids)):
                texts, at = (each[piece] for each in chosen)
                share = self._weights[step] / update_rows
                self._backward_logits(leaf[texts, at], wanted[due[texts, at]], share, sums)
        found = [
            (output, leaf.grad) for output, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None
        ]
        if found:
            torch.autograd.backward([output for output, _ in found], [grad for _, grad in found])

    def save(self, directory: Path) -> None:
        save_eagle3_head(self.head, directory)

    @torch.no_grad()
    def _wanted(self, batch: Batch, features: Tensor) -> tuple[Tensor, Tensor]:
        """(place, wanted): of each token that is learned its row in `wanted`, or -1; int64 [texts, length].

        wanted: the target's distributions over the draft vocabulary, float32 [learned tokens, draft_vocab].
        """
        place = torch.full(batch.counted.shape, -1, device=features.device)
        texts, at = batch.counted[:, 2:].nonzero(as_tuple=True)
        kept: list[Tensor] = []
        learned: list[Tensor] = []
        for piece in self.pieces(len(texts), self._target.lm_head.vocab_size):
            logits = self._target.lm_head.differentiable_logits(features[texts[piece], at[piece] + 1])
            proposable = self._proposable[logits.argmax(dim=-1)]
            learned.append(proposable)
            kept.append(logits[proposable][:, self._ids].softmax(dim=-1))
        chosen = torch.cat(learned)
        place[texts[chosen], at[chosen] + 2] = torch.arange(int(chosen.sum()), device=features.device)
        return place, torch.cat(kept)

    def _backward_logits(self, states: Tensor, wanted: Tensor, share: float, sums: Sums) -> None:
        with self.products(states):
            logits = self.head.logits(states)
        loss = F.cross_entropy(logits, wanted, reduction="sum")
        torch.autograd.backward(share * loss)
        sums.share += share * len(states)
        sums.token += share * loss.item()
        sums.agreed += share * float((logits.argmax(dim=-1) == wanted.argmax(dim=-1)).sum())


def draft_vocabulary(documents: Sequence[TrainingText], vocab: int, size: int) -> Tensor:
    """The `size` tokens of a vocabulary that come most often where the assistant writes, ascending; int64."""
    counts = np.zeros(vocab, dtype=np.int64)
    for document in documents:
        counts += np.bincount(document.tokens[document.counted], minlength=vocab)
    frequent = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(frequent))
