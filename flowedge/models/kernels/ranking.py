"""The likeliest columns of rows of logits, found by the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from flowedge.core.arrays import FloatArray, IntArray
from flowedge.device.kernel_library import library
from flowedge.models.kernels.structures import pointer


def likeliest(
    logits: torch.Tensor,
    most: int,
    noises: Sequence[torch.Tensor] = (),
    factor: float = 0.0,
    scale: float = 1.0,
) -> tuple[IntArray, FloatArray]:
    """Rank the columns of each row by (logit + factor * noise) / scale.

    Args:
        logits: float32 [rows, columns] in the host's memory.
        most: the number of columns to return, from 1 to all.
        noises: for each row float32 [columns]; empty for logits alone, which have no scale.

    Returns:
        The columns int64 [rows, most], the likeliest first and the lowest of equal columns first; and their
        log-probabilities among all columns, float64. A row with NaN or positive infinity has NaN.
    """
    logits = logits.contiguous()
    rows, columns = logits.shape
    found, logs = np.empty((rows, most), np.int64), np.empty((rows, most))
    addresses = (ctypes.c_void_p * rows)(*(noise.data_ptr() for noise in noises))
    library().flowedge_rank(
        pointer(logits),
        ctypes.c_int64(rows),
        ctypes.c_int64(columns),
        ctypes.c_int64(most),
        addresses,
        ctypes.c_float(factor),
        ctypes.c_float(scale),
        ctypes.c_void_p(found.ctypes.data),
        ctypes.c_void_p(logs.ctypes.data),
        torch.get_num_threads(),
    )
    return found, logs
