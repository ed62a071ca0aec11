"""The training of a head: what all kinds of heads have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from flowedge.training.documents import Batch
from flowedge.training.target import TrainingTarget

HELD_LOGITS = 2**23  # logits that are held at once: 256 rows of a vocabulary of 32,768


@dataclass
class LossSums:
    """Weighted sums over the rows of an update that count, for an EAGLE-3 head over the rows of all steps.

    Attributes:
        share: the sum of the weights.
        feature: smooth-L1 losses; token: soft cross-entropies in nats.
        agreed: rows with the target's likeliest token.
    """

    share: float = 0.0
    feature: float = 0.0
    token: float = 0.0
    agreed: float = 0.0


class HeadTraining(ABC):
    """A head in training.

    Attributes:
        head: float32, in training mode; tensors shared with the target are no parameters of it.
        compute: the dtype of its matrix products.
    """

    def __init__(
        self, head: nn.Module, target: TrainingTarget, compute: torch.dtype, ids: Tensor | None = None
    ) -> None:
        """Begin a training.

        ids: int64 [tokens], ascending, the tokens whose distribution losses are of; None for all.
        """
        self.head = head.requires_grad_().train().to(target.device)
        self.compute = compute
        self._target = target
        self._ids = None if ids is None else ids.to(target.device)

    @abstractmethod
    def backward(self, batch: Batch, update_rows: int, noise: torch.Generator, sums: LossSums) -> None:
        """Add a batch's gradients and losses; each row that counts has the weight 1 / update_rows."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Write the head in its published layout, each file replaced in one step."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens whose distribution losses are of."""
        return self._target.lm_head.vocab_size if self._ids is None else len(self._ids)

    @cached_property
    def _shared_weight(self) -> Tensor:
        weight = self._target.lm_head.parameter.detach()
        return weight if self._ids is None else weight[self._ids]

    def shared_logits(self, states: Tensor) -> Tensor:
        """The logits float32 [rows, tokens] of states by the target's LM head, for the tokens of losses."""
        return self._target.lm_head.differentiable_logits(states, self._shared_weight)

    def of_tokens(self, logits: Tensor) -> Tensor:
        """The columns of logits [rows, vocab] for the tokens of losses."""
        return logits if self._ids is None else logits[:, self._ids]

    @staticmethod
    def pieces(rows: int, vocab: int) -> Iterator[slice]:
        """Parts of `rows` rows whose logits over a vocabulary may be held at once."""
        size = max(1, HELD_LOGITS // vocab)
        return (slice(start, start + size) for start in range(0, rows, size))

    def products(self, near: Tensor) -> AbstractContextManager[object]:
        """A context with matrix products in `compute` on the device of `near`."""
        return torch.autocast(near.device.type, self.compute, enabled=self.compute == torch.bfloat16)
