"""Tensors in frames: their form in the head, and their data, which is the tail or a part of it.

Hidden states in bfloat16, which numpy lacks, are arrays of their uint16 bit patterns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowedge.core.arrays import Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.v1 import pipeline_pb2 as pb

_DTYPES: dict[int, np.dtype[Any]] = {
    pb.DTYPE_INT32: np.dtype(np.int32),
    pb.DTYPE_FLOAT32: np.dtype(np.float32),
    pb.DTYPE_FLOAT16: np.dtype(np.float16),
    pb.DTYPE_BFLOAT16: np.dtype(np.uint16),
}
_CODES: dict[np.dtype[Any], Any] = {dtype: code for code, dtype in _DTYPES.items()}


def tensor_to_pb(array: Payload) -> pb.Tensor:
    """Return the form of an array. Raises ValueError for a dtype that frames do not carry."""
    code = _CODES.get(array.dtype)
    if code is None:
        raise ValueError(f"dtype {array.dtype} cannot be sent; frames carry {', '.join(map(str, _CODES))}")
    return pb.Tensor(dtype=code, shape=array.shape)


def data_of(array: Payload) -> memoryview | bytes:
    """Return the data of an array, which is not copied if it is contiguous."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def tensor_bytes(tensor: pb.Tensor) -> int:
    """Return the bytes of the data of a tensor of this form; 0 for a dtype that is unknown."""
    dtype = _DTYPES.get(tensor.dtype)
    return 0 if dtype is None else math.prod(tensor.shape) * dtype.itemsize


def tensor_from_pb(tensor: pb.Tensor, tail: bytes | bytearray | memoryview, padding: int) -> Payload:
    """Return a read-only array over the bytes of the tail, behind which `padding` bytes follow.

    Raises:
        ProtocolError: when the tail has another size than the form says, or the form is not supported.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ProtocolError(f"the tensor's dtype {tensor.dtype} is unknown")
    shape = tuple(tensor.shape)
    if not 1 <= len(shape) <= 2:
        raise ProtocolError(f"the tensor has {len(shape)} dimensions; 1 or 2 are allowed")
    count = math.prod(shape)
    wanted = count * dtype.itemsize
    if max(shape) > MAX_FRAME_BYTES or wanted + padding != len(tail):
        raise ProtocolError(
            f"a tensor of {dtype} {list(shape)} has {wanted} bytes and {padding} of padding, but "
            f"{len(tail)} came"
        )
    array: Payload = np.frombuffer(tail, dtype=dtype, count=count).reshape(shape)
    array.flags.writeable = False
    return array
