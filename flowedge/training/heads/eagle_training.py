"""Training of an EAGLE-1/2 head: features and tokens are foreseen one row ahead."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from flowedge.drafting.heads.eagle_head import EagleHead, save_eagle_head
from flowedge.training.data.batch import Batch
from flowedge.training.heads.head_training import HeadTraining, Sums
from flowedge.training.heads.recipe import head_losses, with_noise
from flowedge.training.targets.target import TrainingTarget


class EagleTraining(HeadTraining):
    """See HeadTraining."""

    head: EagleHead

    def __init__(
        self, head: EagleHead, target: TrainingTarget, cross_entropy_weight: float, compute: torch.dtype
    ) -> None:
        super().__init__(head, target.device, compute)
        self._target = target
        self._weight = cross_entropy_weight

    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: Sums) -> None:
        features = batch.rows
        given = with_noise(features[:, :-1], batch.spread, noise)
        embedded = self._target.embed(batch.tokens[:, 1:])
        rows = pad(batch.counted[:, 2:], (0, 1))
        with self.products(features):
            predicted = self.head.forward_causal(embedded, given)[rows].float()
        wanted = features[:, 1:][rows]
        # Backwards in two parts, so that few rows have their logits in memory.
        leaf = predicted.detach().requires_grad_()
        for piece in self.pieces(len(leaf), self._target.lm_head.vocab_size):
            self._backward_logits(leaf[piece], wanted[piece], update_rows, sums)
        predicted.backward(leaf.grad)  # type: ignore[no-untyped-call]

    def save(self, directory: Path) -> None:
        save_eagle_head(self.head, directory)

    def _backward_logits(self, predicted: Tensor, wanted: Tensor, update_rows: int, sums: Sums) -> None:
        logits = self._target.lm_head.differentiable_logits(predicted)
        with torch.no_grad():
            wanted_logits = self._target.lm_head.differentiable_logits(wanted)
        weight = len(predicted) / update_rows
        losses = head_losses(predicted, wanted, logits, wanted_logits)
        torch.autograd.backward(weight * losses.total(self._weight))
        agreement = (logits.argmax(-1) == wanted_logits.argmax(-1)).float().mean()
        sums.share += weight
        sums.feature += weight * losses.feature.item()
        sums.token += weight * losses.token.item()
        sums.agreed += weight * agreement.item()
