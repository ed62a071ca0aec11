"""Conversion between tensors and the payloads of messages, and the names of dtypes."""

from __future__ import annotations

import numpy as np
import torch

from flowedge.core.arrays import Payload
from flowedge.core.errors import BadRequestError

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


def to_tensor(payload: Payload) -> torch.Tensor:
    """A tensor with memory of its own: int64 token ids, or hidden states in their dtype."""
    if payload.dtype == np.int32:
        return torch.from_numpy(payload.astype(np.int64))
    # Copied, because received arrays are read-only.
    tensor = torch.from_numpy(payload.copy())
    return tensor.view(torch.bfloat16) if payload.dtype == np.uint16 else tensor


def to_payload(tensor: torch.Tensor) -> Payload:
    """The payload of hidden states [n, hidden]."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Payload = tensor.numpy()
    return array
