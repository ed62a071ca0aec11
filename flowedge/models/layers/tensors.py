"""Payloads of the wire to tensors and back."""

from __future__ import annotations

import numpy as np
import torch

from flowedge.core.arrays import Payload
from flowedge.core.errors import BadRequestError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of weights and hidden states by its name; "" is float32. Raises BadRequestError."""
    dtype = DTYPES.get(name or "float32")
    if dtype is None:
        raise BadRequestError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return dtype


def payload_dtype(dtype: torch.dtype) -> str:
    """The numpy name of hidden states of this dtype on the wire; bfloat16 travels as its bit pattern."""
    return "uint16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")


def to_tensor(payload: Payload) -> torch.Tensor:
    """A tensor of its own memory: int64 of token ids, the hidden states' own dtype otherwise."""
    if payload.dtype == np.int32:
        return torch.from_numpy(payload.astype(np.int64))
    # Copied, because what came off the wire is read-only.
    tensor = torch.from_numpy(payload.copy())
    return tensor.view(torch.bfloat16) if payload.dtype == np.uint16 else tensor


def to_payload(tensor: torch.Tensor) -> Payload:
    """Hidden states as they travel: [n, hidden] on the CPU."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: Payload = tensor.numpy()
    return array
