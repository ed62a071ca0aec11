"""Drafting with an EAGLE-1/2 head over the target's own features."""

from __future__ import annotations

import torch
from torch import nn

from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps


class EagleDrafter(HeadDrafter):
    """Predicts the target's final hidden states, which the target's own LM head reads."""

    taps: Taps = ()

    def __init__(
        self, head: EagleHead, lm_head: LMHead, embedding: nn.Embedding, recalls: bool = False
    ) -> None:
        """`embedding` is the target's, or the head's own where it has one; recalls: see HeadDrafter."""
        super().__init__(head, head.config, lm_head, embedding, recalls)
        self._hidden = int(head.config.hidden_size)

    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[:, : self._hidden]  # what was tapped for another drafter follows

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._lm_head.logits(features)
