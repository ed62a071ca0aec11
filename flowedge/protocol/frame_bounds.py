"""The bounds of the head of each kind of frame, held against its bytes before protobuf parses them.

Parsing makes objects of what it reads: two bytes of an empty report cost more than a hundred. So the fields
of a frame are counted and measured first, which allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import BATCH_SEGMENTS


class FrameError(ProtocolError):
    """A frame that is not valid.

    Attributes:
        session: name of the frame's session, "" where the frame names none.
    """

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(reason)
        self.session = session


MAX_SESSION_ID = 64  # characters
MAX_TEXT = 4096  # characters of a reason or of a device name
MAX_ROWS = 1 << 16  # rows of a segment, and rows that a prune retains
MAX_REPORTS = 1024  # stages of one pipeline
MAX_REPORT_BYTES = 1024  # of one stage's report
MAX_EOS = 1 << 10  # token ids that end an answer
OPEN_BYTES = 32 << 10  # of the head of a frame that opens a session
CONTROL_BYTES = 1 << 20  # most bytes of a frame that is no segment
SEGMENT_HEAD_BYTES = 3 << 20  # most bytes of the head of the frame of a segment or a batch

VARINT_BYTES = 10  # most bytes of a number
SMALL_BYTES = 16 << 10  # a frame up to this size costs little, whatever it holds
_VARINT, _FIXED64, _BYTES = 0, 1, 2  # wire types
_NOTHING_YET = ""


class _Field(NamedTuple):
    """What a field may be.

    Attributes:
        wire: its wire type.
        size: most bytes of a field of bytes.
        times: how often it may come.
        values: most numbers of a packed list; 0 for a field that is no list.
        fields: those of a message in the field; None where the bytes are not looked into.
    """

    wire: int
    size: int = 0
    times: int = 1
    values: int = 0
    fields: Mapping[int, _Field] | None = None


def _message(size: int, fields: Mapping[int, _Field], times: int = 1) -> _Field:
    return _Field(_BYTES, size, times, fields=fields)


def _packed(values: int) -> _Field:
    return _Field(_BYTES, values * VARINT_BYTES, values=values)


_NUMBER = _Field(_VARINT)
_FLOAT = _Field(_FIXED64)
_SESSION = _Field(_BYTES, 4 * MAX_SESSION_ID)
_NAME = _Field(_BYTES, 4 * MAX_SESSION_ID)  # of a session that the frame is not of
_TEXT = _Field(_BYTES, 4 * MAX_TEXT)
_LIST = _packed(MAX_ROWS)
_STAGES = _packed(MAX_REPORTS)
_TENSOR = _message(512, {1: _NUMBER, 2: _packed(2)})
_SEGMENT = {1: _SESSION, 2: _NUMBER, 3: _NUMBER, 4: _NUMBER, 5: _NUMBER, 6: _LIST, 7: _LIST, 8: _TENSOR} | {
    9: _NUMBER,
    10: _LIST,
    11: _LIST,
    12: _STAGES,
    13: _STAGES,
}
_EOS = _packed(MAX_EOS)
_DRAWING = {1: _FLOAT, 2: _NUMBER, 3: _FLOAT, 4: _NUMBER, 5: _NUMBER, 6: _NUMBER, 7: _NUMBER, 8: _EOS}
_PREFIX = {1: _NAME, 2: _NUMBER}
_OPEN = {1: _SESSION, 2: _NUMBER, 3: _message(OPEN_BYTES, _DRAWING), 4: _NUMBER, 5: _NUMBER} | {
    6: _message(512, _PREFIX)
}
_BODIES: Mapping[int, tuple[str, _Field]] = {
    1: ("open", _message(OPEN_BYTES, _OPEN)),
    2: ("segment", _message(SEGMENT_HEAD_BYTES, _SEGMENT)),
    3: (
        "prune",
        _message(CONTROL_BYTES, {1: _SESSION, 2: _NUMBER, 3: _NUMBER, 4: _NUMBER, 5: _NUMBER, 6: _LIST}),
    ),
    4: (
        "close",
        _message(CONTROL_BYTES, {1: _SESSION, 2: _Field(_BYTES, MAX_REPORT_BYTES, MAX_REPORTS), 3: _NUMBER}),
    ),
    5: ("credit", _message(512, {1: _SESSION})),
    6: ("fault", _message(CONTROL_BYTES, {1: _SESSION, 2: _TEXT, 3: _TEXT, 4: _TEXT})),
    7: ("heartbeat", _message(512, {1: _NUMBER})),
    9: ("tapped", _message(1024, {1: _SESSION, 2: _NUMBER, 3: _TENSOR})),
    10: ("batch", _message(SEGMENT_HEAD_BYTES, {1: _message(SEGMENT_HEAD_BYTES, _SEGMENT, BATCH_SEGMENTS)})),
    11: ("forget", _message(512, {1: _SESSION})),
}
_FRAME = {number: body for number, (_, body) in _BODIES.items()} | {8: _FLOAT}


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
        if number not in _BODIES:
            continue
        bodies += 1
        walk.kind, body = _BODIES[number]
        if bodies > 1:
            raise walk.error("a second body")
        assert body.fields is not None
        walk.message(start, stop, body.fields)


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
            if field is _SESSION:
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
