"""Attention with a mask over views of a session's keys and values, by torch's own kernels."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention by the kernel that suits the device and the dtype; no keys and values are copied.

    Args:
        query: [1, heads, rows, head_size].
        key, value: [1, kv_heads, context, head_size], views of any stride.
        attention_mask: additive, [1, 1, rows, context], of the query's dtype.
        softcap: the bound that tanh keeps the scores within.

    Returns:
        [1, heads, rows, head_size].
    """
    if softcap is not None:
        return attend_capped(query, key, value, attention_mask, scaling, softcap)
    grouped = query.shape[1] != key.shape[1]
    # In 16 bits, torch's kernel for CPUs packs the keys of every query head, so heads are folded there too.
    if grouped and not (query.is_cpu and query.dtype == torch.float32):
        return attend_packed(query, key, value, attention_mask, scaling)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=grouped
    )


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Grouped-query attention whose query heads with a common key head are folded into rows.

    On CUDA, torch's kernels with a mask need as many key heads as query heads, and enable_gqa selects a
    kernel that copies the keys and values. Shapes as in `attend_masked`.
    """
    folded = query.reshape(1, key.shape[1], -1, query.shape[3])
    if attention_mask is not None:
        group, rows = query.shape[1] // key.shape[1], query.shape[2]
        attention_mask = (
            attention_mask.expand(-1, -1, group, -1) if rows == 1 else torch.cat([attention_mask] * group, 2)
        )
    output = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return output.reshape(query.shape)


def attend_capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention with soft-capped scores, for which torch has no kernel; heads are folded as above.

    Shapes as in `attend_masked`.
    """
    _, _, rows, size = query.shape
    kv_heads = key.shape[1]
    folded = query.reshape(1, kv_heads, -1, size)
    scale = size**-0.5 if scaling is None else scaling
    scores = torch.matmul(folded, key.transpose(2, 3)).mul_(scale / softcap).tanh_().mul_(softcap)
    scores = scores.view(1, kv_heads, -1, rows, key.shape[2])
    if attention_mask is not None:
        scores.add_(attention_mask[:, None])
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights.view(*folded.shape[:3], -1), value)
    return output.reshape(query.shape)
