"""The choice of the format that drafters which are models are held in."""

from __future__ import annotations

import torch

from flowedge.core.pipeline_config import AUTO
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant.quantize import linear_bytes


def layer_quant(form: DrafterFormat, dtype: torch.dtype, device: torch.device) -> str:
    """Return the format of a drafter's layers on a device: what the form says, or with "auto" the fastest.

    On a CPU with kernels that is 8 bits for a model in bfloat16. In float32 a drafter stays as it is, as
    everything does there.
    """
    if form.quant != AUTO:
        return form.quant
    kernels = device.type == "cpu" and not missing_reason()
    return "int8" if kernels and dtype == torch.bfloat16 else "none"


def lm_quant(checkpoint: Checkpoint, quant: str) -> str:
    """Return the format that a language model's layers are loaded in, which may be stored quantised."""
    return quant if checkpoint.quant == "none" else "none"


def head_quant(quant: str, rows: int, hidden: int, dtype: torch.dtype, most: int | None) -> str:
    """Return the format of the LM head [rows, hidden] that a drafter proposes with.

    It is `quant`, but a copy that would take more than `most` bytes stays in `dtype`; None is no limit.
    """
    too_large = most is not None and linear_bytes(rows, hidden, quant, dtype) > most
    return "none" if too_large else quant


def copy_limit(form: DrafterFormat, saved: int) -> int | None:
    """Return the most bytes of a quantised copy of the LM head; None for no limit.

    `saved` is the number of bytes that the format saves in the drafter's layers.
    """
    return saved if form.limits_copy else None
