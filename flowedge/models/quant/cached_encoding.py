"""Quantising a model that is in memory by way of the cache that blocks use."""

from __future__ import annotations

import torch

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import layer_prefix
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.quant_cache import CacheKey, QuantCache, content_digest
from flowedge.models.quant.quantize import Encode
from flowedge.models.quant.registry import backend_of


def cached_encoding(checkpoint: Checkpoint, quant: str, cache: QuantCache) -> Encode:
    """What encodes the weights of a model's layers; the paths are those in its list of layers.

    The key is made from the weights in memory: they were read by another reader than a block's.
    """
    backend = backend_of(quant)

    def encode(path: str, weight: torch.Tensor) -> Tensors:
        rows = WeightRows.of(weight)
        index, _, inner = path.partition(".")
        stored = checkpoint.dtype(f"{layer_prefix(int(index))}{inner}.weight")
        if torch.promote_types(stored, weight.dtype) != weight.dtype:
            return backend.encode(rows)  # it was rounded, and what was stored is not known here
        chunks = (chunk.to(stored) for _, chunk in rows.chunks())
        key = CacheKey(content_digest(stored, weight.shape, chunks), "", quant, backend.format)
        return cache.encoded(key, lambda: backend.encode(rows))

    return encode
