"""Conversion between tensors and the payloads of messages, and the names of dtypes."""

from __future__ import annotations

import numpy as np
import torch

from flowedge.core.arrays import Payload
from flowedge.core.errors import BadRequestError
from flowedge.models.host.copies import to_device, to_host

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of weights and hidden states by its name; "" stands for float32.

    Raises:
        BadRequestError: when the name is none of DTYPES.
    """
    dtype = DTYPES.get(name or "float32")
    if dtype is None:
        raise BadRequestError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return dtype


def payload_dtype(dtype: torch.dtype) -> str:
    """The numpy dtype in which hidden states of a torch dtype are sent; bfloat16 is sent as bit patterns."""
    return "uint16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")


def to_tensor(payload: Payload, device: torch.device | str = "cpu") -> torch.Tensor:
    """A tensor with memory of its own: int64 token ids, or hidden states in their dtype."""
    (tensor,) = to_device(device, payload.astype(np.int64) if payload.dtype == np.int32 else payload)
    return tensor


def to_payload(tensor: torch.Tensor) -> Payload:
    """The payload of hidden states [n, hidden]."""
    (payload,) = to_host(tensor)
    return payload
