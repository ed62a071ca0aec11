"""Filling modules that were created without memory, tensor by tensor, from a checkpoint."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flowedge.errors import CheckpointError
from flowedge.models import attention
from flowedge.models.checkpoint import Checkpoint
from flowedge.models.experts import split_experts
from flowedge.models.families import layer_prefix
from flowedge.models.quantize import check_quant, linear_bytes, quantize_linear


def load_layer(
    checkpoint: Checkpoint,
    index: int,
    cache_index: int,
    *,
    quant: str,
    dtype: torch.dtype,
    device: torch.device,
) -> nn.Module:
    """Decoder layer `index` of the checkpoint, which writes to layer `cache_index` of a session's cache."""
    layer = _empty_layer(checkpoint, index)
    attend: Any = layer.self_attn
    attend.layer_idx = cache_index
    _check_biases(layer, checkpoint, layer_prefix(index))
    fill(layer, checkpoint, layer_prefix(index), quant=quant, dtype=dtype, device=device)
    return layer.eval()


def fill(
    module: nn.Module,
    checkpoint: Checkpoint,
    prefix: str,
    *,
    quant: str,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Reads a module's parameters from the tensors prefix + their names, quantising its linear layers.

    The shapes wanted are the module's own; CheckpointError on a missing tensor or another shape.
    """
    for path, child in list(module.named_modules()):
        for name, wanted in list(child.named_parameters(recurse=False)):
            full_name = f"{prefix}{path}.{name}" if path else f"{prefix}{name}"
            setattr(child, name, load_parameter(checkpoint, full_name, wanted.shape, dtype, device))
        if isinstance(child, nn.Linear) and path:
            module.set_submodule(path, quantize_linear(child, quant))


def load_parameter(
    checkpoint: Checkpoint, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> nn.Parameter:
    """One tensor of the checkpoint as a frozen parameter of its own memory."""
    tensor = checkpoint.tensor(name, shape)
    # A copy: what was read may be a view of the mapped file, which someone may replace.
    return nn.Parameter(tensor.to(device=device, dtype=dtype, copy=True), requires_grad=False)


def layer_bytes(checkpoint: Checkpoint, index: int, quant: str, dtype: torch.dtype) -> int:
    """The bytes that decoder layer `index` holds in memory after quantisation, from the config alone."""
    check_quant(quant)
    total = 0
    for child in _empty_layer(checkpoint, index).modules():
        for name, parameter in child.named_parameters(recurse=False):
            if isinstance(child, nn.Linear) and name == "weight":
                total += linear_bytes(child.out_features, child.in_features, quant, dtype)
            else:
                total += math.prod(parameter.shape) * dtype.itemsize
    return total


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
