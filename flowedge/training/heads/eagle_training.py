"""Training of an EAGLE-1/2 head, which predicts the feature and the token one row ahead.

Losses and noise are those of the published recipe (EAGLE, arXiv 2401.15077). Further steps on the head's own
output are HASS's context alignment (arXiv 2408.15766, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flowedge.drafting.heads.eagle_head import EagleHead, save_eagle_head
from flowedge.training.documents import Batch
from flowedge.training.heads.head_training import HeadTraining, LossSums
from flowedge.training.heads.unrolled import pass_on, step_weights, unrolled
from flowedge.training.target import TrainingTarget

NOISE = 0.1  # half-width of the uniform noise on features, in units of their standard deviation


@dataclass(frozen=True)
class Losses:
    """Means over rows, scalars: smooth-L1 of features, and the soft cross-entropy of tokens in nats."""

    feature: Tensor
    token: Tensor

    def total(self, cross_entropy_weight: float) -> Tensor:
        return self.feature + cross_entropy_weight * self.token


def head_losses(predicted: Tensor, wanted: Tensor, logits: Tensor, wanted_logits: Tensor) -> Losses:
    """The losses of a head against the target, with gradients for `predicted` and `logits`.

    Args:
        predicted, wanted: features [rows, hidden].
        logits, wanted_logits: the logits [rows, tokens] of these features by the target's LM head.
    """
    feature = F.smooth_l1_loss(predicted, wanted)
    token = F.cross_entropy(logits, wanted_logits.softmax(dim=-1))
    return Losses(feature, token)


def with_noise(features: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Features [..., hidden] with uniform noise of +-NOISE times `scale`, their standard deviation."""
    noise = torch.rand(features.shape, dtype=features.dtype, device=features.device, generator=generator)
    return features + (noise * 2 - 1) * NOISE * scale


class EagleTraining(HeadTraining):
    """The training of an EAGLE-1/2 head."""

    head: EagleHead

    def __init__(
        self,
        head: EagleHead,
        target: TrainingTarget,
        cross_entropy_weight: float,
        unroll: int,
        compute: torch.dtype,
        ids: Tensor | None = None,
    ) -> None:
        """Train each row through `unroll` steps; `ids` as of HeadTraining."""
        super().__init__(head, target, compute, ids)
        self._weight = cross_entropy_weight
        self._steps = step_weights(unroll)

    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: LossSums) -> None:
        features = batch.rows
        given = with_noise(features[:, :-1], batch.spread, noise)
        steps = len(self._steps)
        embedded = self._target.embed(np.pad(batch.tokens[:, 1:], ((0, 0), (0, steps - 1))))
        with self.products(features):
            outputs = list(unrolled(self.head, embedded, given, steps))
        chosen: list[Tensor] = []
        leaves: list[Tensor] = []
        for step, (output, share) in enumerate(zip(outputs, self._steps, strict=True)):
            # Row t of this step predicts the feature of row t + 1 + step.
            rows = batch.counted[:, 2 + step :]
            predicted = output[:, : rows.shape[1]][rows].float()
            wanted = features[:, 1 + step : 1 + step + rows.shape[1]][rows]
            # Backwards in two parts, so that only a piece's logits are in memory at a time.
            leaf = predicted.detach().requires_grad_()
            for piece in self.pieces(len(leaf), self.num_tokens):
                self._backward_logits(leaf[piece], wanted[piece], share / update_rows, sums)
            chosen.append(predicted)
            leaves.append(leaf)
        pass_on(chosen, leaves)

    def save(self, directory: Path) -> None:
        save_eagle_head(self.head, directory)

    def _backward_logits(self, predicted: Tensor, wanted: Tensor, share: float, sums: LossSums) -> None:
        logits = self.shared_logits(predicted)
        with torch.no_grad():
            wanted_logits = self.shared_logits(wanted)
        weight = share * len(predicted)
        losses = head_losses(predicted, wanted, logits, wanted_logits)
        torch.autograd.backward(weight * losses.total(self._weight))
        agreement = (logits.argmax(-1) == wanted_logits.argmax(-1)).float().mean()
        sums.share += weight
        sums.feature += weight * losses.feature.item()
        sums.token += weight * losses.token.item()
        sums.agreed += weight * agreement.item()
