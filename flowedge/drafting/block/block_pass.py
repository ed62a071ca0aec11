"""A forward of a block head: blocks of one session or of several, or the rows of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from flowedge.core.arrays import IntArray
from flowedge.drafting.block.block_head import BlockHead
from flowedge.drafting.block.block_settings import BlockLayer, BlockWiring
from flowedge.drafting.block.kernel_blocks import BlockStart, KernelBlocks
from flowedge.drafting.block.parallel_head import ParallelHead
from flowedge.drafting.heads.draft_head import CachedAttention, KeyValueViews
from flowedge.drafting.heads.head_forward import HeadAttention
from flowedge.drafting.heads.head_rows import TrueRows
from flowedge.drafting.heads.head_store import HeadStore
from flowedge.models.host.copies import to_device
from flowedge.models.rotary import Angles


def add_text(
    head: BlockHead | ParallelHead, embedding: nn.Embedding, parts: Sequence[tuple[HeadStore, TrueRows]]
) -> None:
    """Store the keys and values of rows of the text in each layer, each layer by one product.

    The rows of P-EAGLE pass the layers, and the states that they predict by are stored as well.
    """
    bounds = np.cumsum([0, *(rows.count for _, rows in parts)]).tolist()
    positions = np.concatenate([rows.positions for _, rows in parts])
    place, *given = to_device(parts[0][0].device, positions, *(rows.given for _, rows in parts))
    dtype = parts[0][0].sizes.dtype
    fused = head.true_states(torch.cat([each.to(dtype) for each in given]))
    rotation = head.rotation(fused, place)
    if isinstance(head, ParallelHead):
        (tokens,) = to_device(fused.device, np.concatenate([rows.tokens for _, rows in parts]))
        spans = [_Span(store, rows.first, rows.count) for store, rows in parts]
        contexts = _contexts(head.blocks.layers, rotation, spans)
        states = head.predict_rows(_embedded(head, embedding, tokens, dtype), fused, contexts)
        for (store, rows), (first, stop) in zip(parts, pairwise(bounds), strict=True):
            store.states[rows.first : rows.stop] = states[first:stop]
        return
    for index, keys_values in enumerate(head.keys_values(fused, rotation)):
        for (store, rows), (first, stop) in zip(parts, pairwise(bounds), strict=True):
            store.kv[index, :, :, rows.first : rows.stop] = keys_values[:, :, first:stop]


def predict_blocks(
    head: BlockHead | ParallelHead,
    embedding: nn.Embedding,
    starts: Sequence[BlockStart],
    kernels: KernelBlocks | None = None,
) -> list[torch.Tensor]:
    """Return the states [depths, hidden] whose logits predict the tokens behind each start and its path.

    kernels: of the head; None where torch computes it.
    """
    blocks = head.blocks
    counts = [start.rows(blocks.size) for start in starts]
    tokens = np.concatenate([_tokens(blocks, start) for start in starts])
    positions = np.concatenate(
        [np.arange(start.position, start.position + rows) for start, rows in zip(starts, counts, strict=True)]
    )
    token, place = to_device(starts[0].store.device, tokens, positions)
    embedded = _embedded(head, embedding, token, starts[0].store.sizes.dtype)
    if kernels is not None:
        states = kernels.predict(embedded, starts)
    else:
        rotation = head.rotation(embedded, place)
        spans = [_Span(start.store, start.position, rows) for start, rows in zip(starts, counts, strict=True)]
        contexts = _contexts(blocks.layers, rotation, spans)
        if isinstance(head, ParallelHead):
            hidden = head.mask_state.expand(len(embedded), -1)
            states = head.predict_rows(embedded, hidden, contexts)
        else:
            states = head.predict(embedded, contexts)
    found = states.split_with_sizes(counts)
    if isinstance(head, ParallelHead):
        last = [start.store.states[start.position - 1 : start.position] for start in starts]
        return [torch.cat(each) for each in zip(last, found, strict=True)]
    firsts = [len(each) - blocks.depths + start.left_out for start, each in zip(starts, found, strict=True)]
    return [each[first:] for first, each in zip(firsts, found, strict=True)]


def _tokens(blocks: BlockWiring, start: BlockStart) -> IntArray:
    tokens = np.full(start.rows(blocks.size), blocks.mask_token, dtype=np.int64)
    if blocks.eagle is None:
        tokens[: 1 + len(start.path)] = (start.token, *start.path)
    return tokens


def block_mask(layer: BlockLayer, before: int, size: int, device: torch.device) -> torch.Tensor:
    """What the rows of a block behind `before` rows of text see in a layer: bool [size, before + size]."""
    keys = torch.arange(before + size, device=device)[None]
    rows = torch.arange(before, before + size, device=device)[:, None]
    seen = keys <= (rows if layer.causal else torch.full_like(rows, before + size - 1))
    return seen if layer.window is None else seen & (keys > rows - layer.window)


@dataclass(frozen=True, eq=False)
class _Span:
    """Rows [first, first + count) of a store, which are computed."""

    store: HeadStore
    first: int
    count: int


def _contexts(layers: Sequence[BlockLayer], rotation: Angles, spans: Sequence[_Span]) -> list[HeadAttention]:
    """What rows see in each layer: those before their span, and of their span what the layer says."""
    bounds = list(pairwise(np.cumsum([0, *(span.count for span in spans)]).tolist()))
    device = spans[0].store.device
    masks = {
        layer: [block_mask(layer, span.first, span.count, device) for span in spans]
        for layer in dict.fromkeys(layers)
    }
    return [
        HeadAttention(
            rotation,
            [
                CachedAttention(
                    rotation,
                    KeyValueViews(*span.store.kv[index, :, :, : span.first + span.count]),
                    mask,
                )
                for span, mask in zip(spans, masks[layer], strict=True)
            ],
            bounds,
        )
        for index, layer in enumerate(layers)
    ]


def _embedded(
    head: BlockHead | ParallelHead, embedding: nn.Embedding, tokens: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    embedded: torch.Tensor = embedding(tokens).to(dtype)
    scale = head.blocks.embedding_scale
    return embedded if scale == 1 else embedded * scale
