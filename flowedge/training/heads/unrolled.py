"""An EAGLE-3 head on its own output: what it will do below the true rows, for all rows of a text at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from flowedge.drafting.heads.draft_head import EagleAttention
from flowedge.drafting.heads.eagle3_head import Eagle3Head
from flowedge.models.layers.rotary import Rotation


def unrolled(head: Eagle3Head, embedded: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
    """The head's output [texts, rows, hidden] after each of `steps` steps.

    Row t of step s stands for the draft node of depth s below the true rows up to t: it has RoPE position
    t + s, takes the output of row t in the step before as its state and the embedding t + s, and sees the
    true rows up to t and rows t of the steps between.

    embedded: [texts, rows + steps - 1, hidden], of row t the embedding of token t + 1; states: [texts, rows,
    hidden], the fused states of true rows.
    """
    rows = states.shape[1]
    layer = head.midlayer
    attention = _BranchAttention(layer.self_attn)
    for step in range(steps):
        rotary = head.rotary_emb(states, torch.arange(step, step + rows, device=states.device)[None])
        token = layer.input_layernorm(embedded[:, step : step + rows])
        inputs = torch.cat((token, layer.hidden_norm(states)), dim=-1)
        states = states + attention(inputs, rotary)
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        yield states


class _BranchAttention:
    """Attention of one text's branches: causal over the first step's rows, then a row's own later steps."""

    def __init__(self, attention: EagleAttention) -> None:
        self._attention = attention
        self._keys: list[Tensor] = []  # each [texts, kv_heads, rows, head_dim]; the first are the true rows'
        self._values: list[Tensor] = []

    def __call__(self, inputs: Tensor, rotary: Rotation) -> Tensor:
        """inputs [texts, rows, input_width] -> [texts, rows, hidden]."""
        own = self._attention
        queries, keys = apply_rotary_pos_emb(
            self._heads(own.q_proj(inputs)), self._heads(own.k_proj(inputs)), *rotary, unsqueeze_dim=1
        )
        self._keys.append(keys)
        self._values.append(self._heads(own.v_proj(inputs)))
        # Query heads that share a key head go beside each other: [texts, kv_heads, group, rows, head_dim].
        grouped = queries.unflatten(1, (keys.shape[1], -1)) * own.head_dim**-0.5
        rows = inputs.shape[1]
        causal = torch.ones(rows, rows, dtype=torch.bool, device=inputs.device).tril()
        true = grouped @ self._keys[0][:, :, None].transpose(-1, -2)
        scores = [true.masked_fill(~causal, -torch.inf)]
        scores += [(grouped * later[:, :, None]).sum(-1, keepdim=True) for later in self._keys[1:]]
        weights = torch.cat(scores, dim=-1).float().softmax(dim=-1).to(queries.dtype)
        attended = weights[..., :rows] @ self._values[0][:, :, None]
        for index, later in enumerate(self._values[1:]):
            attended = attended + weights[..., rows + index, None] * later[:, :, None]
        merged = attended.flatten(1, 2).transpose(1, 2).flatten(2)
        projected: Tensor = own.o_proj(merged)
        return projected

    def _heads(self, projected: Tensor) -> Tensor:
        """[texts, rows, heads * head_dim] -> [texts, heads, rows, head_dim]."""
        split = projected.view(*projected.shape[:-1], -1, self._attention.head_dim)
        return split.transpose(1, 2)
