"""Weights that other quantisers stored as integers, brought into the form of int4 and w8a16."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import pad

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.backend import CHUNK_WEIGHTS, Tensors
from flowedge.models.quant.int4 import GROUPS, SMALL_GROUP, Int4, padded_shape
from flowedge.models.quant.packed_integers import IntegerShape, IntegerWeight
from flowedge.models.quant.quantize import backend_of
from flowedge.models.quant.w8a16 import W8A16


class ReorderedLinear(nn.Module):
    """A quantised linear layer whose input features are put into the order of its weight's columns first."""

    def __init__(self, linear: nn.Module, order: torch.Tensor) -> None:
        """`order` is int32 [in_features], the input feature of each column of the weight."""
        super().__init__()
        self.linear = linear
        self.order = nn.Parameter(order, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        ordered: torch.Tensor = self.linear(inputs.index_select(-1, self.order))
        return ordered


_MIDDLE = {4: 8, 8: 128}


def build_repacked(
    weight: IntegerWeight, like: nn.Linear, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """Build the layer that holds a stored weight as it is.

    Args:
        like: a layer with the same sizes, and the bias on `device`.
        dtype: the dtype of input and output rows.

    Raises:
        CheckpointError: when the weight does not fit the layer, or no kernel takes its groups or zeros.
    """
    shape = weight.shape
    if (shape.out_features, shape.in_features) != (like.out_features, like.in_features):
        raise CheckpointError(
            f"it is stored as {[shape.out_features, shape.in_features]}, the config asks for "
            f"{[like.out_features, like.in_features]}"
        )
    backend = backend_of("int4" if shape.bits == 4 else "w8a16")
    layer = backend.build(repack(weight), like, dtype, device)
    return layer if weight.order is None else ReorderedLinear(layer, weight.order.int().to(device))


def repacked_bytes(shape: IntegerShape) -> int:
    """The bytes in memory of a layer's weight after `build_repacked`, without bias."""
    order = shape.in_features * torch.int32.itemsize if shape.reordered else 0
    if shape.bits == 4:
        return Int4().weight_bytes(shape.out_features, shape.in_features, _int4_group(shape)) + order
    own = W8A16().weight_bytes(shape.out_features, shape.in_features, shape.group, shape.scale_dtype)
    return own + order


def repack(weight: IntegerWeight) -> Tensors:
    """The encoded form of int4 for 4 bits, of w8a16 for 8 bits; columns keep the order they are stored in."""
    return _int4(weight) if weight.shape.bits == 4 else _w8a16(weight)


def _int4(weight: IntegerWeight) -> Tensors:
    """The form of Int4.encode. Its scales and zeros are bfloat16, so the stored scales are rounded to it."""
    shape = weight.shape
    group = _int4_group(shape)
    out, width, _ = padded_shape(shape.out_features, shape.in_features, group)
    nibbles = torch.zeros((out, width // 2), dtype=torch.uint8)
    for start, stop in _parts(shape):
        levels = pad(weight.levels(start, stop), (0, width - shape.in_features))
        nibbles[start:stop] = levels[:, ::2] << 4 | levels[:, 1::2]
    scale = weight.scales.bfloat16()
    zero = ((_MIDDLE[4] - weight.zeros.float()) * scale.float()).bfloat16()
    # A group that is longer than the kernels take is several groups with the same scale.
    repeats, padding = -(-shape.group // group), (0, 0, 0, out - shape.out_features)

    def fitted(part: torch.Tensor) -> torch.Tensor:
        return pad(part.repeat_interleave(repeats, dim=1)[:, : width // group], padding)

    return {"weight": nibbles, "scale": fitted(scale), "zero": fitted(zero)}


def _w8a16(weight: IntegerWeight) -> Tensors:
    shape = weight.shape
    if bool((weight.zeros != _MIDDLE[8]).any()):
        raise CheckpointError(
            "it has 8 bits and zero points other than the middle level (asymmetric), which is not supported"
        )
    values = torch.empty((shape.out_features, shape.in_features), dtype=torch.int8)
    for start, stop in _parts(shape):
        values[start:stop] = weight.levels(start, stop).short() - _MIDDLE[8]
    return {"weight": values, "scale": weight.scales.contiguous()}


def _int4_group(shape: IntegerShape) -> int:
    """The longest group of the kernels that a stored group is a multiple of."""
    fitting = [group for group in GROUPS if shape.group % group == 0]
    if not fitting and shape.groups > 1:
        raise CheckpointError(f"groups of {shape.group} weights are not supported; 32 or a multiple of 32 is")
    return max(fitting, default=SMALL_GROUP)


def _parts(shape: IntegerShape) -> list[tuple[int, int]]:
    """[start, stop) of the rows that are repacked together."""
    rows = max(8, CHUNK_WEIGHTS // shape.in_features // 8 * 8)
    return [(start, min(start + rows, shape.out_features)) for start in range(0, shape.out_features, rows)]
