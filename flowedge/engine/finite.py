"""Tests whether hidden states and scores are numbers. A copy to the host must be there: no GPU is awaited."""

from __future__ import annotations

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import FlowEdgeError, NonFiniteError, error_from_code
from flowedge.drafting.drafter import DraftLayer

BFLOAT16_EXPONENT, FLOAT16_EXPONENT = 0x7F80, 0x7C00  # all bits of the exponent: NaN or infinity


def rows_not_finite(payload: Payload) -> int:
    """Return the number of rows that hold NaN or infinity.

    Args:
        payload: hidden states [n, width], bfloat16 as bit patterns in uint16; integers of other dtypes are
            finite.
    """
    match payload.dtype.name:
        case "uint16":
            return _rows_with(payload, BFLOAT16_EXPONENT)
        case "float16":  # by its bits: numpy's own test of float16 takes ten times as long
            return _rows_with(np.ascontiguousarray(payload).view(np.uint16), FLOAT16_EXPONENT)
        case "float32" | "float64":
            finite = np.isfinite(payload)
            return 0 if finite.all() else int((~finite.all(axis=1)).sum())
    return 0


def check_finite(payload: Payload, sender: str) -> None:
    """Check hidden states that device `sender` sent.

    Raises:
        NonFiniteError: when a row is not finite.
    """
    damaged = rows_not_finite(payload)
    if damaged:
        raise NonFiniteError.of(f"{damaged} of {len(payload)} rows that device {sender} sent")


def are_scores(layer: DraftLayer) -> bool:
    """Whether no log-probability of a layer is NaN or infinity; a child that is impossible has -infinity."""
    return bool((layer.log_probs < np.inf).all())


def named(error: FlowEdgeError, device: str) -> FlowEdgeError:
    """Return an error; an error of numbers with the name of the device before it."""
    damaged = isinstance(error, NonFiniteError)
    return error_from_code(error.code, device, str(error)) if damaged else error


def _rows_with(bits: Payload, exponent: int) -> int:
    """Return the number of rows [n, width] in which a value has this exponent."""
    exponents = bits & np.uint16(exponent)
    if not exponents.size or exponents.max() < exponent:
        return 0
    return int((exponents == exponent).any(axis=1).sum())
