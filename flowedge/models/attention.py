"""Attention over views of the session's cache: no copy of the keys and values, no rebuilt mask."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "flowedge"


def attend(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention call; there is no dropout.

    query: [1, heads, rows, head_size]; key and value: [1, kv_heads, context, head_size], views of any stride;
    attention_mask: additive, [1, 1, rows, context], of the query's dtype. Returns [1, rows, heads,
    head_size].
    """
    if query.device.type == "cpu" or query.shape[1] == key.shape[1]:
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    else:
        output = attend_packed(query, key, value, attention_mask, scaling)
    return output.transpose(1, 2), None


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Grouped-query attention with the heads that share a key folded into rows; shapes as in `attend`.

    Off the CPU, torch's kernels that take a mask want as many key heads as query heads, and enable_gqa
    falls back to one that copies the keys and values. Returns [1, heads, rows, head_size].
    """
    _, heads, rows, size = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, group, 1)
    folded = query.reshape(1, kv_heads, group * rows, size)
    output = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(1, heads, rows, size)


AttentionInterface.register(NAME, attend)
