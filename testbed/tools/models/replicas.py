"""Training steps on threads that share one model and wait for each other once a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
        self.copies = [copy.deepcopy(module) for _ in range(threads)]
        self.free: SimpleQueue[Model] = SimpleQueue()
        for replica in self.copies:
            for own, shared in zip(replica.parameters(), module.parameters(), strict=True):
                own.data = shared.data
            self.free.put(replica)
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def step(self, micro_batches: list[Tensor], optimizers: list[Optimizer], learning_rate: float) -> float:
        """Update the weights by the gradient of the micro-batches' mean loss, and return that loss."""
        count = len(micro_batches)
        loss = sum(self.pool.map(lambda tokens: self._backward(tokens, count), micro_batches))
        self._collect_gradients()
        clip_grad_norm_(self.module.parameters(), 1.0)
        list(self.pool.map(lambda optimizer: apply(optimizer, learning_rate), optimizers))
        return loss

    def _backward(self, tokens: Tensor, count: int) -> float:
        replica = self.free.get()
        try:
            loss = self.loss_of(replica, tokens) / count
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


def apply(optimizer: Optimizer, learning_rate: float) -> None:
    """Update the weights with this learning rate, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()
