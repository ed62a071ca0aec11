"""The bounds of frames, which pipeline.proto declares, held against a frame's bytes before they are parsed.

Parsing makes objects of what it reads: two bytes of an empty report cost more than a hundred. So the fields
of a frame are counted and measured first, which allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from flowedge.core.errors import ProtocolError
from flowedge.v1 import pipeline_pb2 as pb
from flowedge.v1.bounds_pb2 import Bounds, most


class FrameError(ProtocolError):
    """A frame that is not valid.

    Attributes:
        session: name of the frame's session, "" where the frame names none.
    """

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(reason)
        self.session = session


VARINT_BYTES = 10  # most bytes of a number
SMALL_BYTES = 16 << 10  # a frame up to this size costs little, whatever it holds
_VARINT, _FIXED64, _BYTES = 0, 1, 2  # wire types
_NOTHING_YET = ""


class _Field(NamedTuple):
    """The bounds of a field, as pipeline.proto declares them.

    Attributes:
        wire: its wire type.
        size: most bytes of a field of bytes.
        times: how often it may come.
        values: most numbers of a packed list; 0 for a field that is no list.
        fields: those of a message in the field; None where the bytes are not looked into.
        names_session: whether it holds the session of the frame.
    """

    wire: int
    size: int = 0
    times: int = 1
    values: int = 0
    fields: Mapping[int, _Field] | None = None
    names_session: bool = False


def _bounds_of(field: Any) -> Bounds:  # descriptors have one type in Python and another in the C library
    bounds: Bounds = field.GetOptions().Extensions[most]
    return bounds


def _field(field: Any) -> _Field:
    bounds = _bounds_of(field)
    if bounds.values:
        return _Field(_BYTES, bounds.values * VARINT_BYTES, values=bounds.values)
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _Field(_FIXED64)
    if not bounds.bytes:
        return _Field(_VARINT)
    inner = None if field.message_type is None or bounds.opaque else _fields(field.message_type)
    is_session = field.name == "session"
    return _Field(_BYTES, bounds.bytes, bounds.times or 1, fields=inner, names_session=is_session)


def _fields(message: Any) -> Mapping[int, _Field]:
    return {field.number: _field(field) for field in message.fields}


_BODIES = {field.number: field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields}
_FRAME = _fields(pb.Frame.DESCRIPTOR)


def _declared(message: type[Message], name: str) -> Bounds:
    return _bounds_of(message.DESCRIPTOR.fields_by_name[name])


MAX_SESSION_ID = _declared(pb.Open, "session").bytes // 4  # characters, of up to 4 bytes in UTF-8
MAX_TEXT = _declared(pb.Fault, "reason").bytes // 4  # characters of a reason or of a device name
MAX_ROWS = _declared(pb.Segment, "positions").values  # rows of a segment, and rows that a prune retains
MAX_REPORTS = _declared(pb.Close, "reports").times  # stages of one pipeline
CONTROL_BYTES = _declared(pb.Frame, "prune").bytes  # most bytes of a frame that is no segment
SEGMENT_HEAD_BYTES = _declared(pb.Frame, "segment").bytes  # of the head of a segment or a batch


def check_bounds(data: bytes) -> None:
    """Check the number and the sizes of the fields of the head of a frame.

    Raises:
        FrameError: when a field is unknown, too long or repeated too often; it names the session if the frame
            does so before that.
    """
    if len(data) <= SMALL_BYTES:
        return
    walk = _Walk(data)
    bodies = 0
    for number, start, stop in walk.fields(0, len(data), _FRAME):
        body = _FRAME[number].fields
        if body is None:
            continue
        bodies += 1
        walk.kind = _BODIES[number]
        if bodies > 1:
            raise walk.error("a second body")
        walk.message(start, stop, body)


class _Walk:
    """A walk over the fields of one frame, of which it notes the session for errors."""

    def __init__(self, data: bytes) -> None:
        self.kind = _NOTHING_YET
        self._session = _NOTHING_YET
        self._data = data

    def error(self, reason: str) -> FrameError:
        return FrameError(self._session, f"{self.kind or 'the frame'}: {reason}")

    def message(self, start: int, stop: int, known: Mapping[int, _Field]) -> None:
        for number, first, end in self.fields(start, stop, known):
            field = known[number]
            if field.names_session:
                self._note_session(self._data[first:end])
            elif field.values:
                self._check_list(number, first, end, field.values)
            elif field.fields is not None:
                self.message(first, end, field.fields)

    def fields(self, at: int, end: int, known: Mapping[int, _Field]) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and stop of each field between two places of the frame."""
        data, times = self._data, dict.fromkeys(known, 0)
        while at < end:
            tag, at = (data[at], at + 1) if data[at] < 0x80 else self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            field = known.get(number)
            if field is None or field.wire != wire:
                raise self.error(f"field {number} of wire type {wire} is unknown")
            times[number] += 1
            if times[number] > field.times:
                raise self.error(f"field {number} comes more than {field.times} times")
            start = at
            if wire == _FIXED64:
                at += 8
            else:
                value, at = (data[at], at + 1) if at < end and data[at] < 0x80 else self._varint(at, end)
                if wire == _BYTES:
                    if value > field.size:
                        raise self.error(
                            f"field {number} has {value} bytes; at most {field.size} are allowed"
                        )
                    start, at = at, at + value
            if at > end:
                raise self.error(f"field {number} is cut off")
            yield number, start, at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return the number at a place, and the place behind it."""
        value = shift = 0
        for place in range(at, min(at + VARINT_BYTES, end)):
            byte = self._data[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place + 1
            shift += 7
        raise self.error("a number is cut off")

    def _check_list(self, number: int, start: int, stop: int, most: int) -> None:
        if stop - start <= most:  # each number takes a byte or more
            return
        packed = np.frombuffer(self._data, np.uint8, stop - start, start)
        count = int(np.count_nonzero(packed < 0x80))
        if count > most:
            raise self.error(f"field {number} lists {count} numbers; at most {most} are allowed")

    def _note_session(self, name: bytes) -> None:
        text = name.decode("ascii", "replace")
        if 0 < len(text) <= MAX_SESSION_ID and text.isascii() and text.isprintable():
            self._session = text
