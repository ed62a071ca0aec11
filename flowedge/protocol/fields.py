"""Checked numbers, texts and tensors of frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import MAX_FRAME_BYTES
from flowedge.protocol.frame_bounds import MAX_SESSION_ID, MAX_TEXT, FrameError
from flowedge.v1 import pipeline_pb2 as pb

MAX_INDEX = 1 << 40  # rows, positions, epochs, counts


def is_session_id(name: str) -> bool:
    """Return whether a text may be the id of a session."""
    return 0 < len(name) <= MAX_SESSION_ID and name.isascii() and name.isprintable()


def session_of(body: Any) -> str:
    """Return the session that a part of a frame names. Raises FrameError if it names none."""
    session: str = getattr(body, "session", "")
    if not is_session_id(session):
        raise FrameError("", f"the session id must be 1 to {MAX_SESSION_ID} printable ASCII characters")
    return session


def int64(values: Sequence[int], least: int) -> IntArray:
    """Return the numbers: int64 [n].

    Raises:
        ProtocolError: when one is below `least` or above MAX_INDEX.
    """
    numbers = list(values)  # of a few numbers, Python finds the least sooner than numpy
    if numbers and (min(numbers) < least or max(numbers) > MAX_INDEX):
        raise ProtocolError(f"an index is outside {least}..{MAX_INDEX}")
    array: IntArray = np.array(numbers, dtype=np.int64)
    return array


def index(value: int) -> int:
    """Return a number of at most MAX_INDEX. Raises ProtocolError for a larger one."""
    if value > MAX_INDEX:
        raise ProtocolError(f"the number {value} is above {MAX_INDEX}")
    return value


def text(value: str) -> str:
    """Return a text of at most MAX_TEXT characters. Raises ProtocolError for a longer one."""
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text has {len(value)} characters; at most {MAX_TEXT} are allowed")
    return value


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
