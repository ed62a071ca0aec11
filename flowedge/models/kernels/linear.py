"""A linear layer whose product the kernels compute; a row has the same bits beside any other rows."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn

from flowedge.device.kernel_library import library
from flowedge.models.kernels.packing import LANES, unpacked
from flowedge.models.kernels.structures import BFLOAT16, FLOAT32, FORMATS, LinearFields, pointer

_WEIGHTS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}  # floats that the kernels multiply with


class KernelLinear(nn.Module):
    """A linear layer over weights in a format of the kernels.

    Attributes:
        structure: the layer as the kernels read it; it refers to the memory of the module's tensors.
    """

    def __init__(
        self,
        like: Any,
        weight: torch.Tensor,
        kind: int,
        *,
        scales: torch.Tensor | None = None,
        group: int = 0,
        width: int | None = None,
    ) -> None:
        """Use a weight's memory.

        Args:
            like: a linear layer with the same sizes and the bias.
            kind: the weight's format; packed weights have `scales`, as `packed_scales` returns them.
            width: the inputs of a packed weight, where zeros follow the inputs of the layer.
        """
        super().__init__()
        self.in_features, self.out_features = int(like.in_features), int(like.out_features)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scales = None if scales is None else nn.Parameter(scales, requires_grad=False)
        self.bias = like.bias
        self.width = self.in_features if width is None else width
        self._kind, self._group = kind, group
        self._float_bias = None if like.bias is None else like.bias.detach().float().contiguous()

    @property
    def structure(self) -> LinearFields:
        scales = self.scales
        return LinearFields(
            self._kind,
            self._group,
            scales is not None and scales.dtype == torch.float16,
            scales is not None and scales.shape[2] == 2,
            self.out_features,
            self.width,
            pointer(self.weight),
            None if scales is None else pointer(scales),
            None if self._float_bias is None else pointer(self._float_bias),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the inputs [..., in_features]."""
        output = self.product(inputs.reshape(-1, self.in_features))
        return output.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, out_features] for rows [n, in_features]."""
        if self.width != self.in_features:
            rows = nn.functional.pad(rows, (0, self.width - self.in_features))
        return product(self.structure, rows)

    def unpacked_rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return rows float32 [n, in_features] of a packed weight, for the outputs int64 [n]."""
        assert self.scales is not None, "floats are not packed"
        block, lane = outputs // LANES, outputs % LANES
        multiples = unpacked(self.weight[block, :, :, lane], self._kind)
        scales = self.scales[block, :, :, lane].float()  # [n, groups, scale and zero]
        grouped = multiples.view(*scales.shape[:2], self._group)
        weights = grouped * scales[..., :1] + (scales[..., 1:] if scales.shape[2] == 2 else 0)
        return weights.flatten(1)[:, : self.in_features]


def rounding(linear: LinearFields) -> tuple[int, int]:
    """Return what two linear layers have in common whose rows are rounded alike."""
    return (linear.format, 0) if linear.format in FORMATS.values() else (-1, linear.group)


def fits_kernels(weight: torch.Tensor) -> bool:
    """Whether the kernels multiply with a weight as it is."""
    return weight.is_cpu and weight.dtype in _WEIGHTS and weight.is_contiguous()


def float_linear(linear: nn.Linear) -> KernelLinear:
    """The layer `linear`, whose weight the kernels read where it is; see `fits_kernels`."""
    return KernelLinear(linear, linear.weight.detach(), _WEIGHTS[linear.weight.dtype])


def product(structure: LinearFields, rows: torch.Tensor) -> torch.Tensor:
    """The product float32 [n, out] of rows [n, in] with a linear layer, its bias added."""
    rows = rows.contiguous()
    output = torch.empty((len(rows), structure.out), dtype=torch.float32)
    if len(rows):
        library().flowedge_linear(
            ctypes.byref(structure),
            FORMATS[rows.dtype],
            pointer(rows),
            ctypes.c_int64(len(rows)),
            pointer(output),
            torch.get_num_threads(),
        )
    return output
