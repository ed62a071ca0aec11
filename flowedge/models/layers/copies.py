"""Copies between the host's memory and a compute device: the only places where the host waits for a GPU.

Several arrays or tensors share one copy. A copy to a device is queued without waiting, from pinned memory.
A copy to the host waits for everything that is queued on the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

HostArray = npt.NDArray[Any]

_ALIGNMENT = 16  # bytes at whose multiples each array of a copy begins
_TORCH_DTYPES = {
    np.dtype(np.uint16): torch.bfloat16,  # bit patterns, as in payloads
    np.dtype(np.bool_): torch.bool,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def to_device(device: torch.device | str, *arrays: HostArray) -> list[torch.Tensor]:
    """Return a tensor with memory of its own for each array, copied to the device together.

    The dtypes are the arrays', except that uint16 stands for the bit patterns of bfloat16.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return [_on_host(array) for array in arrays]
    offsets, size = [], 0
    for array in arrays:
        offsets.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    staged = np.zeros(size, dtype=np.uint8)
    for offset, array in zip(offsets, arrays, strict=True):
        staged[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    uploaded = _upload(staged, device)
    return [
        uploaded[offset : offset + array.nbytes].view(_TORCH_DTYPES[array.dtype]).view(array.shape)
        for offset, array in zip(offsets, arrays, strict=True)
    ]


def to_host(*tensors: torch.Tensor) -> list[HostArray]:
    """Return the content of tensors of one device, copied to the host together; bfloat16 comes as uint16."""
    plain = [each.detach().contiguous() for each in tensors]
    bits = [each.view(torch.uint16) if each.dtype == torch.bfloat16 else each for each in plain]
    if bits[0].device.type == "cpu":
        return [each.numpy() for each in bits]
    downloaded = _download(torch.cat([_padded_bytes(each) for each in bits]) if len(bits) > 1 else bits[0])
    if len(bits) == 1:
        return [downloaded]
    arrays, offset = [], 0
    for each in bits:
        dtype = np.dtype(str(each.dtype).removeprefix("torch."))
        content = downloaded[offset : offset + each.nbytes]
        arrays.append(content.view(dtype).reshape(tuple(each.shape)))
        offset += -(-each.nbytes // _ALIGNMENT) * _ALIGNMENT
    return arrays


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor itself if it is on a device of this type, otherwise its copy there."""
    if tensor.device.type == device.type:
        return tensor
    (copied,) = to_device(device, *to_host(tensor))
    return copied


def _on_host(array: HostArray) -> torch.Tensor:
    # Copied, because received arrays are read-only.
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _padded_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, with zeros up to a multiple of the alignment."""
    content = tensor.reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(content, (0, -math.prod(content.shape) % _ALIGNMENT))


def _upload(staged: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    """The copy of bytes to a device, which is queued."""
    # Pinned memory is reused by torch only after the copy has ended.
    return torch.from_numpy(staged).pin_memory().to(device, non_blocking=True)


def _download(tensor: torch.Tensor) -> HostArray:
    """The copy of a tensor to the host, which waits for the device."""
    array: HostArray = tensor.cpu().numpy()
    return array
