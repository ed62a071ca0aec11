"""Drafting with an EAGLE-3 head over hidden states from three layers of the target."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.drafting.heads.eagle3_head import Eagle3Head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import Taps


class Eagle3Drafter(HeadDrafter):
    """Fuses the tapped states of true rows; below them the head's own output takes the place of a feature.

    It proposes tokens of the head's draft vocabulary alone.
    """

    def __init__(self, head: Eagle3Head, lm_head: LMHead, embedding: nn.Embedding, taps: Taps) -> None:
        """lm_head: the target's; embedding: the target's, or the head's own; taps: see eagle3_taps."""
        super().__init__(head, head.config, lm_head, embedding)
        self._own = head
        self._taps = taps
        self._tapped_width = head.fc.in_features

    @property
    def taps(self) -> Taps:
        return self._taps

    def _features(self, rows: torch.Tensor) -> torch.Tensor:
        fused: torch.Tensor = self._own.fc(rows[:, -self._tapped_width :])
        return fused

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        return self._own.logits(features)

    @cached_property
    def _ids(self) -> IntArray:
        return self._own.target_ids(np.arange(self._own.lm_head.out_features))
