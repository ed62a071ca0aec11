"""Conversion of messages to protobuf frames and back, with all checks that need no session.

A frame from a link is untrusted data: nothing of an invalid frame is used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import asdict, replace
from typing import NamedTuple

from google.protobuf.message import DecodeError

from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.core.messages import (
    Close,
    Credit,
    Fault,
    Forget,
    Heartbeat,
    Message,
    Open,
    Prune,
    Segment,
    SegmentBatch,
    Tapped,
)
from flowedge.core.request import StageReport
from flowedge.protocol.fields import data_of, index, int64, session_of, tensor_from_pb, tensor_to_pb, text
from flowedge.protocol.frame_bounds import (
    MAX_REPORTS,
    MAX_ROWS,
    MAX_TEXT,
    SMALL_BYTES,
    VARINT_BYTES,
    FrameError,
    check_bounds,
)
from flowedge.protocol.opening import open_from_pb, open_to_pb
from flowedge.protocol.segments import batch_from_pb, segment_from_pb, segment_to_pb
from flowedge.v1 import pipeline_pb2 as pb

_BESIDE_ROWS_BYTES = 1024  # of the head of a segment: what is not counted by rows
MAX_REPORT_NAME = 128  # characters of a device's name in a report

LENGTHS = struct.Struct("<II")  # bytes of the head and of the tail, before both of them


class Frame(NamedTuple):
    """The bytes of a frame in two parts, which are sent one after the other.

    Attributes:
        start: the lengths and the head; tail: see pipeline.proto. The tail is not copied from the message.
    """

    start: bytes
    tail: memoryview | bytes

    @property
    def num_bytes(self) -> int:
        return len(self.start) + len(self.tail)


def encode(message: Message) -> Frame:
    """Return the frame of a message.

    Raises:
        ValueError: when the payload has a dtype that frames do not carry.
    """
    return to_frame(to_head(message), payload_of(message))


def to_frame(frame: pb.Frame, tail: memoryview | bytes) -> Frame:
    """Return the frame with this head and tail."""
    head = frame.SerializeToString()
    return Frame(LENGTHS.pack(len(head), len(tail)) + head, tail)


def to_bytes(message: Message) -> bytes:
    """Return the frame of a message as one string of bytes."""
    return b"".join(encode(message))


def decode(data: bytes) -> Message:
    """Return the message in the bytes of a frame.

    Raises:
        FrameError: when the bytes are not a valid frame.
    """
    if len(data) < LENGTHS.size:
        raise FrameError("", f"{len(data)} bytes are not a frame")
    head, tail = LENGTHS.unpack_from(data)
    if len(data) != LENGTHS.size + head + tail:
        raise FrameError("", f"a frame of {len(data)} bytes says that it has {LENGTHS.size + head + tail}")
    return read(data[LENGTHS.size : LENGTHS.size + head], data[LENGTHS.size + head :])[0]


def read(head: bytes, tail: bytes | bytearray) -> tuple[Message, float]:
    """Return the message in the two parts of a frame, and when it was due to leave its sender.

    The time is in seconds of time.monotonic(), and 0 but for senders that emulate a device.

    A segment's payload is an array over the memory of the tail, which must not change after that.

    Raises:
        FrameError: when the parts are not a valid frame.
    """
    check_bounds(head)
    try:
        frame = pb.Frame.FromString(head)
    except DecodeError as error:
        raise FrameError("", f"{len(head)} bytes are not the head of a frame") from error
    message = from_frame(frame, tail)
    departed = frame.departed
    return message, departed if math.isfinite(departed) else 0.0


def segment_bytes(rows: int, row_bytes: int) -> int:
    """Return the most bytes of the frame of a segment or a batch.

    Args:
        rows: of all segments; row_bytes: of the payload of each.
    """
    return rows * (row_bytes + 3 * VARINT_BYTES) + BATCH_SEGMENTS * _BESIDE_ROWS_BYTES + SMALL_BYTES


def to_head(message: Message) -> pb.Frame:  # noqa: PLR0911 (one for each kind)
    """Return the head of a message's frame."""
    match message:
        case Open():
            return pb.Frame(open=open_to_pb(message))
        case Segment():
            return pb.Frame(segment=segment_to_pb(message))
        case SegmentBatch():
            segments = [segment_to_pb(segment) for segment in message.segments]
            return pb.Frame(batch=pb.Batch(segments=segments))
        case Prune():
            return pb.Frame(prune=_prune_to_pb(message))
        case Tapped():
            rows = tensor_to_pb(message.rows)
            return pb.Frame(tapped=pb.Tapped(session=message.session, first=message.first, rows=rows))
        case Close():
            reports = [_report_to_pb(report) for report in message.reports]
            return pb.Frame(close=pb.Close(session=message.session, reports=reports, kept=message.kept))
        case Forget():
            return pb.Frame(forget=pb.Forget(session=message.session))
        case Credit():
            return pb.Frame(credit=pb.Credit(session=message.session))
        case Fault():
            fault = pb.Fault(
                session=message.session,
                device=message.device[:MAX_TEXT],
                code=message.code,
                reason=message.reason[:MAX_TEXT],
            )
            return pb.Frame(fault=fault)
        case Heartbeat():
            return pb.Frame(heartbeat=pb.Heartbeat(sequence=message.sequence, received=message.received))


def from_frame(frame: pb.Frame, tail: bytes | bytearray = b"") -> Message:
    """Return the message in a frame with this head and tail.

    Raises:
        FrameError: when a rule is broken; it names the session if the frame does.
    """
    kind = frame.WhichOneof("body")
    if kind is None:
        raise FrameError("", "the frame has no body")
    if kind == "heartbeat" and not tail:
        return Heartbeat(frame.heartbeat.sequence, frame.heartbeat.received)
    if kind == "batch":
        return batch_from_pb(frame.batch, tail)
    session = session_of(getattr(frame, kind))
    try:
        if tail and kind not in {"segment", "tapped"}:
            raise ProtocolError(f"a tail of {len(tail)} bytes, which it has no tensor for")
        return _message(kind, frame, tail)
    except ProtocolError as error:
        raise FrameError(session, f"{kind}: {error}") from error


def _message(kind: str, frame: pb.Frame, tail: bytes | bytearray) -> Message:  # noqa: PLR0911 (see to_head)
    match kind:
        case "open":
            return open_from_pb(frame.open)
        case "segment":
            return segment_from_pb(frame.segment, tail)
        case "prune":
            return _prune_from_pb(frame.prune)
        case "tapped":
            rows = tensor_from_pb(frame.tapped.rows, tail, padding=0)
            return Tapped(frame.tapped.session, index(frame.tapped.first), rows)
        case "close":
            return _close_from_pb(frame.close)
        case "forget":
            return Forget(frame.forget.session)
        case "credit":
            return Credit(frame.credit.session)
        case _:
            fault = frame.fault
            return Fault(fault.session, text(fault.device), text(fault.code), text(fault.reason))


def _prune_to_pb(prune: Prune) -> pb.Prune:
    return pb.Prune(
        session=prune.session,
        epoch=prune.epoch,
        source_len=prune.source_len,
        context=prune.context,
        accepted=prune.accepted,
        retained=prune.retained.tolist(),
        in_turn=prune.in_turn,
    )


def _prune_from_pb(prune: pb.Prune) -> Prune:
    if len(prune.retained) > MAX_ROWS:
        raise ProtocolError(f"{len(prune.retained)} retained rows; at most {MAX_ROWS} are allowed")
    retained = int64(prune.retained, least=0)
    if len(retained) > 1 and not bool((retained[1:] > retained[:-1]).all()):
        raise ProtocolError("the retained rows do not ascend")
    if prune.accepted > len(retained):
        raise ProtocolError(f"accepts {prune.accepted} of {len(retained)} retained rows")
    return Prune(
        session=prune.session,
        epoch=index(prune.epoch),
        source_len=index(prune.source_len),
        context=index(prune.context),
        accepted=prune.accepted,
        retained=retained,
        in_turn=prune.in_turn,
    )


def _report_to_pb(report: StageReport) -> pb.StageReport:
    return pb.StageReport(**asdict(replace(report, device=report.device[:MAX_REPORT_NAME])))


def _report_from_pb(report: pb.StageReport) -> StageReport:
    if not (math.isfinite(report.busy_s) and report.busy_s >= 0):
        raise ProtocolError(f"a report has a busy time of {report.busy_s} s")
    return StageReport(
        device=text(report.device),
        segments=index(report.segments),
        rows_computed=index(report.rows_computed),
        rows_trimmed=index(report.rows_trimmed),
        rows_wasted=index(report.rows_wasted),
        aborted=index(report.aborted),
        busy_s=report.busy_s,
        bytes_sent=report.bytes_sent,
    )


def _close_from_pb(close: pb.Close) -> Close:
    if len(close.reports) > MAX_REPORTS:
        raise ProtocolError(f"{len(close.reports)} reports; at most {MAX_REPORTS} are allowed")
    return Close(close.session, tuple(map(_report_from_pb, close.reports)), index(close.kept))


def payload_of(message: Message) -> memoryview | bytes:
    """Return the tail of a message's frame, which is not copied from the message where it is one tensor."""
    match message:
        case Segment():
            return data_of(message.payload)
        case SegmentBatch():
            return b"".join(payload_of(segment) for segment in message.segments)
        case Tapped():
            return data_of(message.rows)
        case _:
            return b""
