"""Bounds of frames: what passes is what devices send, and no frame costs more than its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.core.messages import Close, Message, Prune, Segment, StageReport
from flowedge.protocol import wire
from flowedge.protocol.frame_bounds import MAX_REPORTS, MAX_ROWS, SMALL_BYTES, FrameError, check_bounds
from flowedge.v1 import pipeline_pb2 as pb
from flowedge.v1.bounds_pb2 import most


def number(value: int) -> bytes:
    """A varint."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def field(place: int, data: bytes) -> bytes:
    return number(place << 3 | 2) + number(len(data)) + data


def body(kind: int, *fields: bytes) -> bytes:
    return field(kind, field(1, b"s") + b"".join(fields))


WIDE = np.zeros((3000, 2), np.float32)
MESSAGES: list[Message] = [
    Segment("s", 1, 1 << 40, False, 5, np.arange(3000) << 28, np.arange(3000) - 1, WIDE),
    Prune("s", 1, MAX_ROWS, 0, 3, np.arange(MAX_ROWS)),
    Close("s", tuple(StageReport("x" * 400, *[1 << 40] * 5, 1e9, 1 << 60) for _ in range(MAX_REPORTS))),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_devices_send_passes(message: Message) -> None:
    frame = wire.to_head(message)
    frame.departed = 3.0
    head = frame.SerializeToString()
    assert len(head) > SMALL_BYTES
    check_bounds(head)
    assert type(wire.decode(wire.to_bytes(message))) is type(message)


EMPTY_REPORT = field(2, b"")
HOSTILE = {
    "16 MiB of empty reports": body(4, EMPTY_REPORT * (8 << 20)),
    "10,000 empty reports": body(4, EMPTY_REPORT * 10_000),
    "a report of 20 KiB": body(4, field(2, bytes(20 << 10))),
    "65,537 retained rows": body(3, field(6, bytes(MAX_ROWS + 1))),
    "retained rows, not packed": body(3, b"\x30\x01" * 20000),
    "a segment number 20,000 times": body(2, b"\x10\x01" * 20000),
    "two payloads": body(2, field(8, b""), field(8, b""), field(6, bytes(SMALL_BYTES))),
    "a shape of 1,000 dimensions": body(2, field(8, field(2, b"\x01" * 1000)), field(6, bytes(SMALL_BYTES))),
    "an unknown field": body(2, field(15, bytes(SMALL_BYTES))),
    "a payload in the head": body(2, field(8, field(3, bytes(SMALL_BYTES)))),
    "two bodies": body(2, field(6, bytes(SMALL_BYTES))) + body(2),
    "a group": b"\x0b" * 40000,
    "a number without an end": b"\x10" + b"\xff" * 40000,
    "an open with a text": body(1, field(2, bytes(40000))),
    "a reason of 20 KiB": body(6, field(4, bytes(20 << 10))),
    "a session of 40 KB": field(5, field(1, bytes(40000))),
    "a field that ends outside": field(2, field(1, b"s") + b"\x4a\xff\x7f" + bytes(30000)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_frames_are_refused_unparsed(data: bytes) -> None:
    with pytest.raises(FrameError):
        check_bounds(data)


def test_the_error_names_the_session() -> None:
    """So that a device can end the session that has lost a message."""
    with pytest.raises(FrameError) as caught:
        check_bounds(HOSTILE["10,000 empty reports"])
    assert caught.value.session == "s"


def test_every_field_of_a_frame_has_a_bound() -> None:
    """A text, a list or a message without one could not be sent at all."""
    unbounded = [
        f"{message.full_name}.{field.name}"
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if message.name not in {"LinkRequest", "LinkOffer", "StageReport"}
        and (field.message_type or field.is_repeated or field.type == field.TYPE_STRING)
        and not field.GetOptions().Extensions[most].ByteSize()
    ]
    assert not unbounded
    segments = pb.Batch.DESCRIPTOR.fields_by_name["segments"]
    assert segments.GetOptions().Extensions[most].times == BATCH_SEGMENTS
