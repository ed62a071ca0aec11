"""Training steps on threads that share one model and wait for each other once a step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

Model = TypeVar("Model", bound=nn.Module)


class Replicas(Generic[Model]):
    """Copies of a module that share its weights, each with gradients of its own and a thread.

    Each thread takes the next micro-batch when it is free. So a core that is busy with other work slows its
    own share of the batch alone, while threads inside every operation would slow the whole batch.
    """

    def __init__(self, module: Model, threads: int, loss_of: Callable[[Model, Tensor], Tensor]) -> None:
        self.module, self.loss_of = module, loss_of
        self.copies = [twin(module) for _ in range(threads)]
        self.free: SimpleQueue[Model] = SimpleQueue()
        for replica in self.copies:
            self.free.put(replica)
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def step(
        self,
        micro_batches: list[Tensor],
        optimizers: list[Optimizer],
        learning_rate: float,
        added: Sequence[tuple[Tensor, float]] = (),
    ) -> float:
        """Update the weights by the gradient of the micro-batches' mean loss, and return that loss.

        Args:
            added: further batches, and the weights with which their losses are added; they are not returned.
        """
        count = len(micro_batches)
        weighted = [*((batch, 1 / count) for batch in micro_batches), *added]
        losses = list(self.pool.map(lambda each: self._backward(*each), weighted))
        loss = sum(losses[:count])
        self._collect_gradients()
        clip_grad_norm_(self.module.parameters(), 1.0)
        list(self.pool.map(lambda optimizer: apply(optimizer, learning_rate), optimizers))
        return loss

    def _backward(self, tokens: Tensor, share: float) -> float:
        replica = self.free.get()
        try:
            loss = self.loss_of(replica, tokens) * share
            torch.autograd.backward(loss)
            return loss.item()
        finally:
            self.free.put(replica)

    def _collect_gradients(self) -> None:
        copies = [replica.parameters() for replica in self.copies]
        for weight, *twins in zip(self.module.parameters(), *copies, strict=True):
            gradients = [twin.grad for twin in twins if twin.grad is not None]
            weight.grad = torch.stack(gradients).sum(dim=0) if gradients else None
            for twin in twins:
                twin.grad = None


def twin(module: Model) -> Model:
    """Return a copy of the module that shares its weights."""
    copied = copy.deepcopy(module)
    for own, shared in zip(copied.parameters(), module.parameters(), strict=True):
        own.data = shared.data
    return copied


def apply(optimizer: Optimizer, learning_rate: float) -> None:
    """Update the weights with this learning rate, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
