"""What a model takes to follow a token, as a distribution over the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from flowedge.core.arrays import IntArray
from flowedge.drafting.drafter import Drafter


@dataclass(frozen=True, eq=False)
class Prediction:
    """What follows each of f tokens.

    Attributes:
        logits: [f, columns].
        positions: f absolute ones, of the tokens that are drawn after each.
        ids: int64 [columns], the target's tokens of the columns; None where they are the same.
    """

    logits: torch.Tensor
    positions: list[int]
    ids: IntArray | None = None


@runtime_checkable
class Predictor(Drafter, Protocol):
    """A Drafter with a distribution over tokens, of which `grow` gives the best."""

    def predict(
        self,
        session: str,
        growth: int,
        nodes: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> Prediction:
        """What follows each frontier node; all as for `grow`."""

    def predict_true(self, session: str, start: int, stop: int) -> Prediction:
        """What was to follow the true rows start .. stop, as it was predicted when they came."""
