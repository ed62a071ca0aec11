"""Conversion of messages to protobuf frames and back, with all checks that need no session.

A frame from a link is untrusted data (rule R7): nothing of an invalid frame is used. Hidden states in
bfloat16, which numpy lacks, are arrays of their uint16 bit patterns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import (
    MAX_FRAME_BYTES,
    Close,
    Credit,
    Fault,
    Heartbeat,
    Message,
    Open,
    Prune,
    Segment,
    StageReport,
)
from flowedge.v1 import pipeline_pb2 as pb

MAX_SESSION_ID = 64  # characters
MAX_TEXT = 4096  # characters of a reason or of a device name
MAX_ROWS = 1 << 16  # rows of a segment, and rows that a prune retains
MAX_INDEX = 1 << 40  # rows, positions, epochs, counts
MAX_REPORTS = 1024  # stages of one pipeline

_DTYPES: dict[int, np.dtype[Any]] = {
    pb.DTYPE_INT32: np.dtype(np.int32),
    pb.DTYPE_FLOAT32: np.dtype(np.float32),
    pb.DTYPE_FLOAT16: np.dtype(np.float16),
    pb.DTYPE_BFLOAT16: np.dtype(np.uint16),
}
_CODES = {dtype: pb.DType.Name(code) for code, dtype in _DTYPES.items()}
_KINDS = {kind.__name__.lower(): kind for kind in (Open, Segment, Prune, Close, Credit, Fault)}
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind)) for kind in (*_KINDS.values(), Heartbeat, StageReport)
}


class FrameError(ProtocolError):
    """A frame that is not valid.

    Attributes:
        session: name of the frame's session, "" where the frame names none.
    """

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(reason)
        self.session = session


def encode(message: Message, departed: float = 0.0) -> bytes:
    """Return the frame of a message as bytes.

    Args:
        departed: when the message was due to leave an emulated device, in seconds of time.monotonic().

    Raises:
        ValueError: when the payload has a dtype that frames do not carry.
    """
    frame = to_frame(message)
    frame.departed = departed
    return frame.SerializeToString()


def decode(data: bytes) -> Message:
    """Return the message in the bytes of a frame.

    Raises:
        FrameError: when the bytes are not a valid frame.
    """
    return read(data)[0]


def read(data: bytes) -> tuple[Message, float]:
    """Return the message in the bytes of a frame, as `decode` does, and `departed` as in `encode`."""
    try:
        frame = pb.Frame.FromString(data)
    except DecodeError as error:
        raise FrameError("", f"{len(data)} bytes are not a frame") from error
    message = from_frame(frame)
    return message, frame.departed if math.isfinite(frame.departed) else 0.0


def to_frame(message: Message) -> pb.Frame:
    return pb.Frame(**{type(message).__name__.lower(): _to_pb(message)})


def from_frame(frame: pb.Frame) -> Message:
    kind = frame.WhichOneof("body")
    if kind is None:
        raise FrameError("", "the frame has no body")
    body = getattr(frame, kind)
    if kind == "heartbeat":
        return Heartbeat(body.sequence)
    session: str = body.session
    if not 0 < len(session) <= MAX_SESSION_ID or not (session.isascii() and session.isprintable()):
        raise FrameError("", f"the session id must be 1 to {MAX_SESSION_ID} printable ASCII characters")
    try:
        message: Message = _from_pb(_KINDS[kind], body)
    except ProtocolError as error:
        raise FrameError(session, f"{kind}: {error}") from error
    return message


def _to_pb(message: Message | StageReport) -> Any:
    """Return the protobuf message of the same name, whose fields have the same names."""
    kind = type(message)
    values = {name: _value_to_pb(name, getattr(message, name)) for name in _FIELDS[kind]}
    return getattr(pb, kind.__name__)(**values)


def _value_to_pb(name: str, value: Any) -> Any:
    match value:
        case np.ndarray():
            return _tensor_to_pb(value) if name == "payload" else value.tolist()
        case tuple():
            return [_to_pb(report) for report in value]
        case str():
            return value[:MAX_TEXT]
        case _:
            return bytes(value) if name == "padding" else value


def _from_pb(kind: type[Any], message: Any) -> Any:
    found = kind(**{name: _value_from_pb(name, getattr(message, name)) for name in _FIELDS[kind]})
    _check(found)
    return found


def _value_from_pb(name: str, value: Any) -> Any:  # noqa: PLR0911 (one for each type)
    match value:
        case bool() | float():
            return value
        case int():
            return _index(value)
        case str():
            return _text(value)
        case bytes():
            return len(value)
        case pb.Tensor():
            return _tensor_from_pb(value)
        case _ if name == "reports":
            if len(value) > MAX_REPORTS:
                raise ProtocolError(f"{len(value)} reports; at most {MAX_REPORTS} are allowed")
            return tuple(_from_pb(StageReport, report) for report in value)
        case _:
            return _int64(value)


def _check(message: Message | StageReport) -> None:
    """Check that the values of a message, each of which is in its range, fit together."""
    match message:
        case Segment():
            rows = message.num_rows
            if len(message.parents) != rows or len(message.payload) != rows:
                raise ProtocolError(
                    f"{rows} positions but {len(message.parents)} parents and a payload of "
                    f"{len(message.payload)} rows"
                )
            if rows and message.positions.min() < 0:
                raise ProtocolError("a position is below 0")
        case Prune():
            retained = message.retained
            if len(retained) and not (retained[0] >= 0 and bool(np.all(np.diff(retained) > 0))):
                raise ProtocolError("the retained rows do not ascend")
            if message.accepted > len(retained):
                raise ProtocolError(f"accepts {message.accepted} of {len(retained)} retained rows")
        case StageReport():
            if not (math.isfinite(message.busy_s) and message.busy_s >= 0):
                raise ProtocolError(f"a report has a busy time of {message.busy_s} s")


def _tensor_to_pb(array: Payload) -> pb.Tensor:
    code = _CODES.get(array.dtype)
    if code is None:
        raise ValueError(f"dtype {array.dtype} cannot be sent; frames carry {', '.join(map(str, _CODES))}")
    return pb.Tensor(dtype=code, shape=array.shape, data=np.ascontiguousarray(array).tobytes())


def _tensor_from_pb(tensor: pb.Tensor) -> Payload:
    """Return a read-only array over the bytes of the frame."""
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ProtocolError(f"the tensor's dtype {tensor.dtype} is unknown")
    shape = tuple(tensor.shape)
    if not 1 <= len(shape) <= 2:
        raise ProtocolError(f"the tensor has {len(shape)} dimensions; 1 or 2 are allowed")
    wanted = math.prod(shape) * dtype.itemsize
    if max(shape) > MAX_FRAME_BYTES or wanted != len(tensor.data):
        raise ProtocolError(
            f"a tensor of {dtype} {list(shape)} has {wanted} bytes, but {len(tensor.data)} came"
        )
    array: Payload = np.frombuffer(tensor.data, dtype=dtype).reshape(shape)
    return array


def _int64(values: Sequence[int]) -> IntArray:
    if len(values) > MAX_ROWS:
        raise ProtocolError(f"{len(values)} rows; at most {MAX_ROWS} are allowed")
    try:
        array: IntArray = np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise ProtocolError(f"an index is above {MAX_INDEX}") from error
    if len(array) and not (array.min() >= -1 and array.max() <= MAX_INDEX):
        raise ProtocolError(f"an index is outside -1..{MAX_INDEX}")
    return array


def _index(value: int) -> int:
    if value > MAX_INDEX:
        raise ProtocolError(f"the number {value} is above {MAX_INDEX}")
    return value


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text has {len(value)} characters; at most {MAX_TEXT} are allowed")
    return value
