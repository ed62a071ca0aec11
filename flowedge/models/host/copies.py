"""Copies between the host's memory and a compute device: the only places where the host waits for a GPU.

Several arrays or tensors share one copy. A copy to a device is queued without waiting, from pinned memory.
A copy to the host waits for everything that is queued on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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
    return _tensors_in(_upload(_packed(arrays), device), arrays)


def to_host(*tensors: torch.Tensor) -> list[HostArray]:
    """Return the content of tensors of one device, copied to the host together; bfloat16 comes as uint16."""
    if tensors[0].device.type == "cpu":
        return [_host_array(each) for each in tensors]
    bits = [plain_bits(each) for each in tensors]
    if len(bits) == 1:
        return [_download(bits[0])]
    return arrays_in(_download(torch.cat([padded_bytes(each) for each in bits])), bits)


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


def _host_array(tensor: torch.Tensor) -> HostArray:
    array: HostArray = plain_bits(tensor).numpy()
    return array


def plain_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The contiguous content of a tensor in a dtype that numpy has."""
    content = tensor.detach().contiguous()
    return content.view(torch.uint16) if content.dtype == torch.bfloat16 else content


def _packed(arrays: Sequence[HostArray]) -> npt.NDArray[np.uint8]:
    """The bytes of arrays, each at a multiple of the alignment."""
    staged = np.zeros(sum(_rounded_up(array.nbytes) for array in arrays), dtype=np.uint8)
    for array, offset in zip(arrays, _offsets(arrays), strict=True):
        staged[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return staged


def _tensors_in(packed: torch.Tensor, arrays: Sequence[HostArray]) -> list[torch.Tensor]:
    """Views of the tensors whose content `_packed` has taken from arrays."""
    return [
        packed[offset : offset + array.nbytes].view(_TORCH_DTYPES[array.dtype]).view(array.shape)
        for array, offset in zip(arrays, _offsets(arrays), strict=True)
    ]


def padded_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, with zeros up to a multiple of the alignment."""
    content = tensor.reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(content, (0, _rounded_up(len(content)) - len(content)))


def arrays_in(packed: HostArray, tensors: Sequence[torch.Tensor]) -> list[HostArray]:
    """Views of the arrays in the concatenated `padded_bytes` of tensors."""
    return [
        packed[offset : offset + tensor.nbytes]
        .view(str(tensor.dtype).removeprefix("torch."))
        .reshape(tuple(tensor.shape))
        for tensor, offset in zip(tensors, _offsets(tensors), strict=True)
    ]


def _offsets(parts: Sequence[HostArray] | Sequence[torch.Tensor]) -> list[int]:
    """The first byte of each part of a copy."""
    return [0, *accumulate(_rounded_up(part.nbytes) for part in parts)][:-1]


def _rounded_up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _upload(staged: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    """The copy of bytes to a device, which is queued."""
    # Pinned memory is reused by torch only after the copy has ended.
    return torch.from_numpy(staged).pin_memory().to(device, non_blocking=True)


def _download(tensor: torch.Tensor) -> HostArray:
    """The copy of a tensor to the host, which waits for the device."""
    array: HostArray = tensor.cpu().numpy()
    return array
