"""Filling modules that were created without memory, a few rows of a tensor at a time, from a checkpoint."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import layer_prefix
from flowedge.models.layers import attention
from flowedge.models.layers.experts import split_experts
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.prequantised import resolve_quant
from flowedge.models.quant.quant_cache import CacheKey, QuantCache, SourceTensor, content_digest, content_of
from flowedge.models.quant.quantize import check_quant, linear_bytes
from flowedge.models.quant.registry import backend_of

CHUNK_BYTES = 16 << 20  # that are held of a tensor as it is stored, while it is read


def load_layer(
    checkpoint: Checkpoint,
    index: int,
    cache_index: int,
    *,
    quant: str,
    dtype: torch.dtype,
    device: torch.device,
    quant_cache: QuantCache | None = None,
) -> nn.Module:
    """Decoder layer `index` of the checkpoint, which writes to layer `cache_index` of a session's cache."""
    layer = _empty_layer(checkpoint, index)
    attend: Any = layer.self_attn
    attend.layer_idx = cache_index
    prefix = layer_prefix(index)
    _check_biases(layer, checkpoint, prefix)
    fill(layer, checkpoint, prefix, quant=quant, dtype=dtype, device=device, quant_cache=quant_cache)
    return layer.eval()


def fill(
    module: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    *,
    quant: str,
    dtype: torch.dtype,
    device: torch.device,
    quant_cache: QuantCache | None = None,
) -> None:
    """Reads a module's parameters from the tensors prefix + their names, quantising its linear layers.

    The shapes wanted are the module's own; CheckpointError on a missing tensor or another shape,
    BadRequestError when the checkpoint is quantised otherwise.
    """
    quant = checkpoint_quant(checkpoint, quant)
    for path, child in list(module.named_modules()):
        base = f"{prefix}{path}." if path else prefix
        quantised = bool(path) and isinstance(child, nn.Linear) and quant != "none"
        for name, wanted in list(child.named_parameters(recurse=False)):
            if not (quantised and name == "weight"):
                parameter = load_parameter(checkpoint, base + name, wanted.shape, dtype, device)
                setattr(child, name, parameter)
        if quantised and isinstance(child, nn.Linear):
            weight = f"{base}weight"
            layer = _quantised_linear(checkpoint, weight, child, quant, dtype, device, quant_cache)
            module.set_submodule(path, layer)


def load_parameter(
    checkpoint: Checkpoint, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> nn.Parameter:
    """One tensor of the checkpoint as a frozen parameter of its own memory."""
    checkpoint.check_shape(name, shape)
    tensor = torch.empty(tuple(shape), dtype=dtype, device=device)
    for start, rows in _stored_rows(checkpoint, name):
        tensor[start : start + len(rows)] = rows
    return nn.Parameter(tensor, requires_grad=False)


def checkpoint_quant(checkpoint: Checkpoint, quant: str) -> str:
    """The quantisation that layers are loaded in when `quant` is asked for; see `resolve_quant`."""
    return resolve_quant(check_quant(quant), checkpoint.quant, checkpoint.directory)


def layer_bytes(checkpoint: Checkpoint, index: int, quant: str, dtype: torch.dtype) -> int:
    """The bytes that decoder layer `index` holds in memory once loaded, from config and headers alone."""
    quant = checkpoint_quant(checkpoint, quant)
    prefix, total = layer_prefix(index), 0
    for path, child in _empty_layer(checkpoint, index).named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            if isinstance(child, nn.Linear) and name == "weight":
                total += _weight_bytes(checkpoint, f"{prefix}{path}.weight", child, quant, dtype)
            else:
                total += math.prod(parameter.shape) * dtype.itemsize
    return total


def _weight_bytes(
    checkpoint: Checkpoint, name: str, linear: nn.Linear, quant: str, dtype: torch.dtype
) -> int:
    if checkpoint.is_quantised(name):
        return checkpoint.quantised_bytes(name)
    left_out = checkpoint.quant != "none"
    return linear_bytes(linear.out_features, linear.in_features, "none" if left_out else quant, dtype)


def _quantised_linear(
    checkpoint: Checkpoint,
    weight: str,
    like: nn.Linear,
    quant: str,
    dtype: torch.dtype,
    device: torch.device,
    quant_cache: QuantCache | None,
) -> nn.Module:
    """A linear layer whose bias is loaded, and whose weight is the tensor `weight`."""
    backend = backend_of(quant)
    if checkpoint.quant == "none":
        shape = (like.out_features, like.in_features)
        checkpoint.check_shape(weight, shape)
        return backend.build(_encode(checkpoint, weight, quant, dtype, quant_cache), like, dtype, device)
    if not checkpoint.is_quantised(weight):
        shape = (like.out_features, like.in_features)
        like.weight = load_parameter(checkpoint, weight, shape, dtype, device)
        return like
    try:
        return backend.build(checkpoint.quantised(weight), like, dtype, device)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.directory}: {weight}: {error}") from error


def _encode(
    checkpoint: Checkpoint, name: str, quant: str, dtype: torch.dtype, quant_cache: QuantCache | None
) -> Tensors:
    """The quantised weight: of the cache, or made from the checkpoint and put there."""
    backend = backend_of(quant)
    out_features, in_features = checkpoint.shape(name)
    # Rounded to the block's dtype first, so that it is what the same block without quantisation would hold.
    rows = WeightRows(
        out_features, in_features, lambda start, stop: checkpoint.rows(name, start, stop).to(dtype)
    )
    if quant_cache is None:
        return backend.encode(rows)
    key = encoding_key(checkpoint, name, _content(checkpoint, name, quant_cache), quant, dtype)
    return quant_cache.encoded(key, lambda: backend.encode(rows))


def encoding_key(checkpoint: Checkpoint, name: str, content: str, quant: str, dtype: torch.dtype) -> CacheKey:
    """What a weight of a block of `dtype` is known by when it is quantised."""
    exact = torch.promote_types(checkpoint.dtype(name), dtype) == dtype
    return CacheKey(content, "" if exact else str(dtype), quant, backend_of(quant).format)


def linear_weights(checkpoint: Checkpoint, index: int) -> list[str]:
    """The weights of decoder layer `index` that are quantised where a quantisation is asked for."""
    modules = _empty_layer(checkpoint, index).named_modules()
    prefix = layer_prefix(index)
    return [f"{prefix}{path}.weight" for path, child in modules if path and isinstance(child, nn.Linear)]


def _content(checkpoint: Checkpoint, name: str, quant_cache: QuantCache) -> str:
    sha256 = checkpoint.sha256(name)
    if sha256 is not None:
        return content_of(checkpoint.dtype(name), checkpoint.shape(name), sha256)
    path, part = checkpoint.source(name)
    source = SourceTensor.of(path, str(part))
    return quant_cache.content(source, lambda: _read_content(checkpoint, name))


def _read_content(checkpoint: Checkpoint, name: str) -> str:
    chunks = (rows for _, rows in _stored_rows(checkpoint, name))
    return content_digest(checkpoint.dtype(name), checkpoint.shape(name), chunks)


def _stored_rows(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, rows) of a tensor in order, as they are stored."""
    shape, itemsize = checkpoint.shape(name), checkpoint.dtype(name).itemsize
    count = max(1, CHUNK_BYTES // max(1, math.prod(shape[1:]) * itemsize))
    for start in range(0, shape[0], count):
        yield start, checkpoint.rows(name, start, min(start + count, shape[0]))


def _empty_layer(checkpoint: Checkpoint, index: int) -> nn.Module:
    config: Any = copy.deepcopy(checkpoint.config)
    config._attn_implementation = attention.NAME
    with torch.device("meta"):
        layer: nn.Module = checkpoint.family.decoder_layer(config, index)
        return split_experts(layer)


def _check_biases(layer: nn.Module, checkpoint: Checkpoint, prefix: str) -> None:
    """A bias that nobody reads would make another model of the checkpoint."""
    known = dict(layer.named_parameters())
    for path, child in layer.named_modules():
        name = f"{path}.bias"
        if isinstance(child, nn.Linear) and name not in known and checkpoint.has(prefix + name):
            raise CheckpointError(
                f"{checkpoint.directory}: tensor {prefix}{name} is a bias that the config does not ask for"
            )
