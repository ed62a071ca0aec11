"""Conversion of messages to protobuf frames and back, with all checks that need no session.

A frame from a link is untrusted data: nothing of an invalid frame is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from flowedge.core.arrays import NO_TOKEN, IntArray
from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.messages import (
    Close,
    Credit,
    Drawing,
    Fault,
    Heartbeat,
    Message,
    Open,
    Prune,
    Segment,
    StageReport,
    StageTime,
    Tapped,
)
from flowedge.core.sampling import SamplingParams
from flowedge.protocol.frame_bounds import (
    MAX_REPORTS,
    MAX_ROWS,
    MAX_SESSION_ID,
    MAX_TEXT,
    SMALL_BYTES,
    VARINT_BYTES,
    check_bounds,
)
from flowedge.protocol.frame_error import FrameError
from flowedge.protocol.tensors import data_of, tensor_from_pb, tensor_to_pb
from flowedge.v1 import pipeline_pb2 as pb

MAX_INDEX = 1 << 40  # rows, positions, epochs, counts
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


def encode(message: Message, departed: float = 0.0) -> Frame:
    """Return the frame of a message.

    Args:
        departed: when the message was due to leave an emulated device, in seconds of time.monotonic().

    Raises:
        ValueError: when the payload has a dtype that frames do not carry.
    """
    frame = to_head(message)
    if departed:
        frame.departed = departed
    head = frame.SerializeToString()
    tail = _tail_of(message)
    return Frame(LENGTHS.pack(len(head), len(tail)) + head, tail)


def to_bytes(message: Message, departed: float = 0.0) -> bytes:
    """Return the frame of a message as one string of bytes."""
    return b"".join(encode(message, departed))


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
    """Return the message in the two parts of a frame, and `departed` as in `encode`.

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
    """Return the most bytes of the frame of a segment, of so many rows with so many bytes of payload each."""
    return rows * (row_bytes + 3 * VARINT_BYTES) + SMALL_BYTES


def to_head(message: Message) -> pb.Frame:  # noqa: PLR0911 (one for each kind)
    """Return the head of a message's frame."""
    match message:
        case Open():
            drawing = None if message.drawing is None else _drawing_to_pb(message.drawing)
            opened = pb.Open(
                session=message.session,
                capacity=message.capacity,
                drawing=drawing,
                keeps_taps=message.keeps_taps,
            )
            return pb.Frame(open=opened)
        case Segment():
            return pb.Frame(segment=_segment_to_pb(message))
        case Prune():
            return pb.Frame(prune=_prune_to_pb(message))
        case Tapped():
            rows = tensor_to_pb(message.rows)
            return pb.Frame(tapped=pb.Tapped(session=message.session, first=message.first, rows=rows))
        case Close():
            reports = [_report_to_pb(report) for report in message.reports]
            return pb.Frame(close=pb.Close(session=message.session, reports=reports))
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
            return pb.Frame(heartbeat=pb.Heartbeat(sequence=message.sequence))


def from_frame(frame: pb.Frame, tail: bytes | bytearray = b"") -> Message:
    """Return the message in a frame with this head and tail.

    Raises:
        FrameError: when a rule is broken; it names the session if the frame does.
    """
    kind = frame.WhichOneof("body")
    if kind is None:
        raise FrameError("", "the frame has no body")
    if kind == "heartbeat" and not tail:
        return Heartbeat(frame.heartbeat.sequence)
    session: str = getattr(getattr(frame, kind), "session", "")
    if not 0 < len(session) <= MAX_SESSION_ID or not (session.isascii() and session.isprintable()):
        raise FrameError("", f"the session id must be 1 to {MAX_SESSION_ID} printable ASCII characters")
    try:
        if tail and kind not in {"segment", "tapped"}:
            raise ProtocolError(f"a tail of {len(tail)} bytes, which it has no tensor for")
        return _message(kind, frame, tail)
    except ProtocolError as error:
        raise FrameError(session, f"{kind}: {error}") from error


def _message(kind: str, frame: pb.Frame, tail: bytes | bytearray) -> Message:  # noqa: PLR0911 (see to_head)
    match kind:
        case "open":
            drawing = _drawing_from_pb(frame.open.drawing) if frame.open.HasField("drawing") else None
            capacity = _index(frame.open.capacity)
            return Open(frame.open.session, capacity, drawing, frame.open.keeps_taps)
        case "segment":
            return _segment_from_pb(frame.segment, tail)
        case "prune":
            return _prune_from_pb(frame.prune)
        case "tapped":
            rows = tensor_from_pb(frame.tapped.rows, tail, padding=0)
            return Tapped(frame.tapped.session, _index(frame.tapped.first), rows)
        case "close":
            return _close_from_pb(frame.close)
        case "credit":
            return Credit(frame.credit.session)
        case _:
            fault = frame.fault
            return Fault(fault.session, _text(fault.device), _text(fault.code), _text(fault.reason))


def _drawing_to_pb(drawing: Drawing) -> pb.Drawing:
    sampling = drawing.sampling
    return pb.Drawing(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        prompt_rows=drawing.prompt_rows,
        features=drawing.features,
        max_new_tokens=drawing.max_new_tokens,
        eos=sorted(drawing.eos),
    )


def _drawing_from_pb(drawing: pb.Drawing) -> Drawing:
    try:
        sampling = SamplingParams(
            temperature=drawing.temperature,
            top_k=_index(drawing.top_k),
            top_p=drawing.top_p,
            seed=drawing.seed,
        )
    except BadRequestError as error:
        raise ProtocolError(str(error)) from error
    return Drawing(
        sampling,
        _index(drawing.prompt_rows),
        drawing.features,
        _index(drawing.max_new_tokens),
        frozenset(_int64(drawing.eos, least=0).tolist()),
    )


def _segment_to_pb(segment: Segment) -> pb.Segment:
    return pb.Segment(
        session=segment.session,
        number=segment.number,
        epoch=segment.epoch,
        committed=segment.committed,
        first_row=segment.first_row,
        positions=segment.positions.tolist(),
        parents=segment.parents.tolist(),
        payload=tensor_to_pb(segment.payload),
        padding=segment.padding,
        tokens=None if segment.tokens is None else segment.tokens.tolist(),
        drawn=None if segment.drawn is None else segment.drawn.tolist(),
        computed_rows=[time.rows for time in segment.stage_times],
        computed_us=[round(time.seconds * 1e6) for time in segment.stage_times],
    )


def _segment_from_pb(segment: pb.Segment, tail: bytes | bytearray) -> Segment:
    rows = len(segment.positions)
    if rows > MAX_ROWS:
        raise ProtocolError(f"{rows} rows; at most {MAX_ROWS} are allowed")
    if len(segment.parents) != rows:
        raise ProtocolError(f"{rows} positions but {len(segment.parents)} parents")
    for name, given in (("tokens", segment.tokens), ("drawn tokens", segment.drawn)):
        if given and len(given) != rows:
            raise ProtocolError(f"{rows} positions but {len(given)} {name}")
    if len(segment.computed_rows) != len(segment.computed_us):
        raise ProtocolError(
            f"rows of {len(segment.computed_rows)} stages but times of {len(segment.computed_us)}"
        )
    payload = tensor_from_pb(segment.payload, tail, segment.padding)
    positions, parents = _int64(segment.positions, least=0), _int64(segment.parents, least=-1)
    read = Segment(
        session=segment.session,
        number=_index(segment.number),
        epoch=_index(segment.epoch),
        committed=segment.committed,
        first_row=_index(segment.first_row),
        positions=positions,
        parents=parents,
        payload=payload,
        padding=segment.padding,
        tokens=_int64(segment.tokens, least=0) if segment.tokens else None,
        drawn=_int64(segment.drawn, least=NO_TOKEN) if segment.drawn else None,
        stage_times=tuple(
            StageTime(_index(rows), _index(us) / 1e6)
            for rows, us in zip(segment.computed_rows, segment.computed_us, strict=True)
        ),
    )
    if len(payload) != len(read.carried):
        raise ProtocolError(f"{len(read.carried)} rows are carried but the payload has {len(payload)}")
    return read


def _prune_to_pb(prune: Prune) -> pb.Prune:
    return pb.Prune(
        session=prune.session,
        epoch=prune.epoch,
        source_len=prune.source_len,
        context=prune.context,
        accepted=prune.accepted,
        retained=prune.retained.tolist(),
    )


def _prune_from_pb(prune: pb.Prune) -> Prune:
    if len(prune.retained) > MAX_ROWS:
        raise ProtocolError(f"{len(prune.retained)} retained rows; at most {MAX_ROWS} are allowed")
    retained = _int64(prune.retained, least=0)
    if len(retained) > 1 and not bool((retained[1:] > retained[:-1]).all()):
        raise ProtocolError("the retained rows do not ascend")
    if prune.accepted > len(retained):
        raise ProtocolError(f"accepts {prune.accepted} of {len(retained)} retained rows")
    return Prune(
        session=prune.session,
        epoch=_index(prune.epoch),
        source_len=_index(prune.source_len),
        context=_index(prune.context),
        accepted=prune.accepted,
        retained=retained,
    )


def _report_to_pb(report: StageReport) -> pb.StageReport:
    return pb.StageReport(**asdict(replace(report, device=report.device[:MAX_REPORT_NAME])))


def _report_from_pb(report: pb.StageReport) -> StageReport:
    if not (math.isfinite(report.busy_s) and report.busy_s >= 0):
        raise ProtocolError(f"a report has a busy time of {report.busy_s} s")
    return StageReport(
        device=_text(report.device),
        segments=_index(report.segments),
        rows_computed=_index(report.rows_computed),
        rows_trimmed=_index(report.rows_trimmed),
        rows_wasted=_index(report.rows_wasted),
        aborted=_index(report.aborted),
        busy_s=report.busy_s,
        bytes_sent=report.bytes_sent,
    )


def _close_from_pb(close: pb.Close) -> Close:
    if len(close.reports) > MAX_REPORTS:
        raise ProtocolError(f"{len(close.reports)} reports; at most {MAX_REPORTS} are allowed")
    return Close(close.session, tuple(_report_from_pb(report) for report in close.reports))


def _tail_of(message: Message) -> memoryview | bytes:
    match message:
        case Segment():
            data = data_of(message.payload)
            return bytes(data) + bytes(message.padding) if message.padding else data
        case Tapped():
            return data_of(message.rows)
        case _:
            return b""


def _int64(values: Sequence[int], least: int) -> IntArray:
    """Return the numbers, none of which may be below `least` or above MAX_INDEX."""
    numbers = list(values)  # of a few numbers, Python finds the least sooner than numpy
    if numbers and (min(numbers) < least or max(numbers) > MAX_INDEX):
        raise ProtocolError(f"an index is outside {least}..{MAX_INDEX}")
    array: IntArray = np.array(numbers, dtype=np.int64)
    return array


def _index(value: int) -> int:
    if value > MAX_INDEX:
        raise ProtocolError(f"the number {value} is above {MAX_INDEX}")
    return value


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text has {len(value)} characters; at most {MAX_TEXT} are allowed")
    return value
