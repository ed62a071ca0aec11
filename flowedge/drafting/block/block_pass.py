"""A forward of a block head: blocks of one session or of several, or the rows of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from flowedge.drafting.block.block_head import BlockHead
from flowedge.drafting.block.block_settings import BlockLayer
from flowedge.drafting.block.kernel_blocks import BlockStart, KernelBlocks
from flowedge.drafting.heads.draft_head import CachedAttention, KeyValueViews
from flowedge.drafting.heads.head_forward import HeadAttention
from flowedge.drafting.heads.head_rows import TrueRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.models.host.copies import to_device
from flowedge.models.rotary import Angles


def add_text(head: BlockHead, parts: Sequence[tuple[HeadStore, TrueRows]]) -> None:
    """Store the keys and values of rows of the text in each layer, each layer by one product."""
    bounds = np.cumsum([0, *(rows.count for _, rows in parts)]).tolist()
    positions = np.concatenate([rows.positions for _, rows in parts])
    place, *given = to_device(parts[0][0].device, positions, *(rows.given for _, rows in parts))
    dtype = parts[0][0].sizes.dtype
    fused = head.true_states(torch.cat([each.to(dtype) for each in given]))
    rotation = head.rotation(fused, place)
    for index, keys_values in enumerate(head.keys_values(fused, rotation)):
        for (store, rows), (first, stop) in zip(parts, pairwise(bounds), strict=True):
            store.kv[index, :, :, rows.first : rows.stop] = keys_values[:, :, first:stop]


def predict_blocks(
    head: BlockHead,
    embedding: nn.Embedding,
    starts: Sequence[BlockStart],
    kernels: KernelBlocks | None = None,
) -> list[torch.Tensor]:
    """Return the states [depths, hidden] whose logits predict the tokens behind each start, by depth.

    kernels: of the head; None where torch computes it.
    """
    wiring = head.wiring
    size, count = wiring.size, len(starts)
    tokens = np.full((count, size), wiring.mask_token, dtype=np.int64)
    tokens[:, 0] = [start.token for start in starts]
    positions = np.array([start.position for start in starts])[:, None] + np.arange(size)
    device = starts[0].store.device
    token, place = to_device(device, tokens.ravel(), positions.ravel())
    embedded = embedding(token).to(starts[0].store.sizes.dtype)
    if kernels is not None:
        computed = kernels.predict(embedded, starts)
        return list(computed.view(count, size, -1)[:, size - wiring.depths :])
    rotation = head.rotation(embedded, place)
    bounds = [(row, row + size) for row in range(0, count * size, size)]
    masks = {
        layer: [block_mask(layer, start.position, size, device) for start in starts]
        for layer in dict.fromkeys(wiring.layers)
    }
    contexts = [
        HeadAttention(rotation, _attention(rotation, index, starts, masks[layer], size), bounds)
        for index, layer in enumerate(wiring.layers)
    ]
    states = head.predict(embedded, contexts).view(count, size, -1)
    return list(states[:, size - wiring.depths :])


def block_mask(layer: BlockLayer, before: int, size: int, device: torch.device) -> torch.Tensor:
    """What the rows of a block behind `before` rows of text see in a layer: bool [size, before + size]."""
    keys = torch.arange(before + size, device=device)[None]
    rows = torch.arange(before, before + size, device=device)[:, None]
    seen = keys <= (rows if layer.causal else torch.full_like(rows, before + size - 1))
    return seen if layer.window is None else seen & (keys > rows - layer.window)


def _attention(
    rotation: Angles, layer: int, starts: Sequence[BlockStart], masks: Sequence[torch.Tensor], size: int
) -> list[CachedAttention]:
    views = (start.store.kv[layer, :, :, : start.position + size] for start in starts)
    return [
        CachedAttention(rotation, KeyValueViews(*each), mask) for each, mask in zip(views, masks, strict=True)
    ]
