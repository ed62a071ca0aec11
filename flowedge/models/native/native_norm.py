"""A norm over rows, computed by the kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from flowedge.device.kernel_library import library
from flowedge.models.lean.form import LayerForm
from flowedge.models.products.structures import FORMATS, pointer


def norm_factor(norm: Any, form: LayerForm) -> torch.Tensor:
    """The factor float32 [hidden] of a root mean square norm of a family."""
    factor: torch.Tensor = norm.weight.detach().float() + (1.0 if form.norm_plus_one else 0.0)
    return factor


class NativeNorm:
    """A root mean square norm of a family, which overwrites its rows."""

    def __init__(self, norm: Any, form: LayerForm) -> None:
        self._factor = norm_factor(norm, form)
        self._epsilon = form.norm_eps

    def __call__(self, rows: torch.Tensor) -> None:
        """Normalise rows [n, hidden] in place."""
        library().flowedge_norm(
            FORMATS[rows.dtype],
            pointer(rows),
            ctypes.c_int64(len(rows)),
            ctypes.c_int64(rows.shape[1]),
            pointer(self._factor),
            ctypes.c_float(self._epsilon),
        )
