"""The quantisations there are, by name."""

from __future__ import annotations

import torch

from flowedge.core.errors import BadRequestError
from flowedge.models.quant.backend import Backend
from flowedge.models.quant.bitsandbytes import FourBit, Int8
from flowedge.models.quant.int4 import Int4

_BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Int8(),
        FourBit("nf4"),
        FourBit("fp4"),
        FourBit("nf4", double=True),
        FourBit("fp4", double=True),
        Int4(),
    )
}
QUANTISATIONS = ("none", *_BACKENDS)


def check_quant(quant: str) -> str:
    """Returns `quant` when it is one of QUANTISATIONS; BadRequestError lists them otherwise."""
    if quant not in QUANTISATIONS:
        raise BadRequestError(f"quantisation {quant!r} is not one of {', '.join(QUANTISATIONS)}")
    return quant


def backend_of(quant: str) -> Backend:
    """The backend of a quantisation other than "none"; BadRequestError when there is none."""
    if check_quant(quant) == "none":
        raise BadRequestError("layers that are not quantised have no quantisation backend")
    return _BACKENDS[quant]


def check_available(quant: str, device: torch.device) -> None:
    """BadRequestError, with the reason, when layers of this quantisation cannot be run on `device`."""
    if check_quant(quant) == "none":
        return
    reason = _BACKENDS[quant].unavailable(device)
    if reason is not None:
        raise BadRequestError(f"quantisation {quant} is not available on {device}: {reason}")
