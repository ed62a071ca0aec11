"""What the kinds of heads have in common as they are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from flowedge.training.data.batch import Batch

HELD_LOGITS = 2**23  # logits that are held at once: 256 rows of a vocabulary of 32,768


@dataclass
class Sums:
    """Weighted over the rows of an update; see StepReport. `share` is the sum of the weights."""

    share: float = 0.0
    feature: float = 0.0
    token: float = 0.0
    agreed: float = 0.0


class HeadTraining(ABC):
    """A head in training: its losses and its files.

    Attributes:
        head: float32, in training mode; what it shares with the target is no parameter of it.
        compute: dtype of its matrix products.
    """

    def __init__(self, head: nn.Module, device: torch.device, compute: torch.dtype) -> None:
        self.head = head.requires_grad_().train().to(device)
        self.compute = compute

    @abstractmethod
    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: Sums) -> None:
        """Adds the gradients and the losses of a batch, each counted row weighing 1 / update_rows."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Writes the head in its published layout, each file replaced in one step."""

    @staticmethod
    def pieces(rows: int, vocab: int) -> Iterator[slice]:
        """Parts of so many rows whose logits over a vocabulary may be held at once."""
        size = max(1, HELD_LOGITS // vocab)
        return (slice(start, start + size) for start in range(0, rows, size))

    def products(self, near: Tensor) -> AbstractContextManager[object]:
        """Matrix products in `compute` on the device of a tensor."""
        return torch.autocast(near.device.type, self.compute, enabled=self.compute == torch.bfloat16)
