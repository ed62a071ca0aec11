"""Steps of a head on its own output: EAGLE-3's training-time test, and HASS's context alignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flowedge.drafting.heads.draft_head import CachedAttention, StepHead
from flowedge.models.rotary import Angles

_DECAY = 0.8  # the factor on the weight of a step, from one step to the next


def step_weights(steps: int) -> list[float]:
    """The weights of so many steps in the loss, which add up to 1."""
    weights = _DECAY ** torch.arange(steps)
    found: list[float] = (weights / weights.sum()).tolist()
    return found


def unrolled(head: StepHead, embedded: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield the head's output [texts, rows, hidden] after each of `steps` steps on its own output.

    Row t of step s stands for the draft node of depth s below the true rows up to t. It has RoPE position
    t + s and embedding t + s, reads the output of row t in the step before, and sees the true rows up to t
    and the rows t of the steps between.

    Args:
        embedded: [texts, rows + steps - 1, hidden]; row t is the embedding of token t + 1.
        states: [texts, rows, hidden], the states of true rows.
    """
    rows = states.shape[1]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        rotation = head.rotary_emb(states, torch.arange(step, step + rows, device=states.device)[None])
        context = _BranchAttention(rotation, keys, values)
        states = head.predict(embedded[:, step : step + rows], states, context)
        yield states


def pass_on(outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Go backwards from outputs with the gradients that were collected at their detached leaves, if any."""
    found = [
        (output, leaf.grad) for output, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None
    ]
    if found:
        torch.autograd.backward([output for output, _ in found], [grad for _, grad in found])


@dataclass(frozen=True)
class _BranchAttention:
    """Attention of all branches: causal over the first step's rows, then over a row's own later steps.

    Attributes:
        keys, values: by step, each [texts, kv_heads, rows, head_dim]; the first step's are the true rows'.
    """

    rotation: Angles
    keys: list[Tensor]
    values: list[Tensor]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float | None = None) -> Tensor:
        self.keys.append(keys)
        self.values.append(values)
        if len(self.keys) == 1:  # true rows alone, whose scores need not be held
            return CachedAttention(self.rotation, None, None).attend(queries, keys, values, scaling)
        # Query heads with a common key head lie beside each other: [texts, kv_heads, group, rows, head_dim].
        scaled = queries * (queries.shape[-1] ** -0.5 if scaling is None else scaling)
        grouped = scaled.reshape(len(scaled), keys.shape[1], -1, *scaled.shape[2:])
        rows = queries.shape[2]
        causal = torch.ones(rows, rows, dtype=torch.bool, device=queries.device).tril()
        true = grouped @ self.keys[0][:, :, None].transpose(-1, -2)
        scores = [true.masked_fill(~causal, -torch.inf)]
        scores += [(grouped * later[:, :, None]).sum(-1, keepdim=True) for later in self.keys[1:]]
        weights = torch.cat(scores, dim=-1).float().softmax(dim=-1).to(queries.dtype)
        attended = weights[..., :rows] @ self.values[0][:, :, None]
        for index, later in enumerate(self.values[1:]):
            attended = attended + weights[..., rows + index, None] * later[:, :, None]
        return attended.flatten(1, 2)
