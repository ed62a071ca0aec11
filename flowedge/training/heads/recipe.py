"""The published recipe of EAGLE heads: losses, noise and the learning rate's course."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NOISE = 0.1  # half-width of the uniform noise on features, in units of their standard deviation
BETAS = (0.9, 0.95)  # of AdamW
WEIGHT_DECAY = 0.01
STEP_DECAY = 0.8  # of the weight of an EAGLE-3 head's steps, from one to the next


@dataclass(frozen=True)
class Losses:
    """Means over rows: smooth-L1 of features, and the soft cross-entropy of tokens in nats; scalars."""

    feature: Tensor
    token: Tensor

    def total(self, cross_entropy_weight: float, feature_weight: float = 1.0) -> Tensor:
        return feature_weight * self.feature + cross_entropy_weight * self.token


def head_losses(predicted: Tensor, wanted: Tensor, logits: Tensor, wanted_logits: Tensor) -> Losses:
    """How far the head is from the target.

    predicted, wanted: features [rows, hidden]; logits, wanted_logits: what the target's LM head makes of
    them, [rows, vocab]. Gradients are for `predicted` and `logits`.
    """
    feature = F.smooth_l1_loss(predicted, wanted)
    token = F.cross_entropy(logits, wanted_logits.softmax(dim=-1))
    return Losses(feature, token)


def with_noise(features: Tensor, scale: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Features [..., hidden] with uniform noise of +-NOISE times `scale`, their standard deviation."""
    noise = torch.rand(features.shape, dtype=features.dtype, device=features.device, generator=generator)
    return features + (noise * 2 - 1) * NOISE * scale


def learning_rate_scale(progress: float, warmup: float = 0.02) -> float:
    """The factor on the peak learning rate at a progress from 0 to 1: linear warm-up, then linear decay."""
    if progress < warmup:
        return max(progress / warmup, 0.05)
    return max((1 - progress) / (1 - warmup), 0.01)


def default_learning_rate(hidden_size: int) -> float:
    """A peak that falls with the width: 1e-3 up to 256, the published 3e-5 from 8192 on."""
    return min(1e-3, max(3e-5, 0.256 / hidden_size))
