"""Messages survive the wire; frames that are not messages are refused with the session they name."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.messages import (
    Close,
    Credit,
    Drawing,
    Fault,
    Forget,
    Heartbeat,
    Message,
    Open,
    Prefix,
    Prune,
    Segment,
    SegmentBatch,
    StageReport,
    StageTime,
    Tapped,
)
from flowedge.core.sampling import MAX_SEED, SamplingParams
from flowedge.protocol import wire
from flowedge.protocol.fields import MAX_INDEX
from flowedge.v1 import pipeline_pb2 as pb

SESSIONS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=64)
INDICES = st.integers(0, MAX_INDEX)
TEXTS = st.text(max_size=50)
REPORTS = st.builds(
    StageReport, TEXTS, INDICES, INDICES, INDICES, INDICES, INDICES, st.floats(0, 1e9), INDICES
)
SECONDS = st.integers(0, 1 << 40).map(lambda us: us / 1e6)
STAGE_TIMES = st.builds(StageTime, INDICES, SECONDS, SECONDS)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    rows = draw(st.integers(0, 20))
    width = draw(st.integers(0, 5))
    dtype = draw(st.sampled_from(["int32", "float32", "float16", "uint16"]))
    shape = (rows,) if width == 0 else (rows, width)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(draw(st.integers(0, 99))).bytes(size)

    def per_row(least: int) -> np.ndarray:
        values = st.lists(st.integers(least, 1 << 40), min_size=rows, max_size=rows)
        return np.array(draw(values), dtype=np.int64)

    segment = Segment(
        draw(SESSIONS),
        draw(INDICES),
        draw(INDICES),
        draw(st.booleans()),
        draw(INDICES),
        per_row(0),
        per_row(-1),
        np.frombuffer(bits, dtype=dtype).reshape(shape),
        per_row(0) if rows and draw(st.booleans()) else None,
        per_row(NO_TOKEN) if rows and draw(st.booleans()) else None,
        tuple(draw(st.lists(STAGE_TIMES, max_size=3))),
    )
    return dataclasses.replace(segment, payload=segment.payload[segment.carried])


def batches() -> st.SearchStrategy[SegmentBatch]:
    several = st.lists(segments(), min_size=2, max_size=4, unique_by=lambda segment: segment.session)
    return several.map(lambda given: SegmentBatch(tuple(given)))


@st.composite
def prunes(draw: st.DrawFn) -> Prune:
    retained = np.array(sorted(draw(st.sets(INDICES, max_size=20))), dtype=np.int64)
    accepted = draw(st.integers(0, len(retained)))
    numbers = draw(INDICES), draw(INDICES), draw(INDICES)
    return Prune(draw(SESSIONS), *numbers, accepted, retained, in_turn=draw(st.booleans()))


DRAWINGS = st.builds(
    Drawing,
    st.builds(
        SamplingParams,
        st.just(0.0) | st.floats(0.01, 100),
        st.integers(0, 1 << 40),
        st.floats(0.01, 1),
        st.integers(0, MAX_SEED),
    ),
    INDICES,
    st.booleans(),
    INDICES,
    st.frozensets(INDICES, max_size=4),
)
PREFIXES = st.builds(Prefix, SESSIONS, INDICES)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Open, SESSIONS, INDICES, st.none() | DRAWINGS, st.booleans(), st.booleans(), st.none() | PREFIXES
    ),
    segments(),
    batches(),
    st.builds(lambda of: Tapped(of.session, of.first_row, of.payload), segments()),
    prunes(),
    st.builds(Close, SESSIONS, st.lists(REPORTS, max_size=4).map(tuple), INDICES),
    st.builds(Forget, SESSIONS),
    st.builds(Credit, SESSIONS),
    st.builds(Fault, SESSIONS, TEXTS, TEXTS, TEXTS),
    st.builds(Heartbeat, INDICES),
)


def same(left: Message, right: Message) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, SegmentBatch) and isinstance(right, SegmentBatch):
        return all(map(same, left.segments, right.segments)) and len(left.segments) == len(right.segments)
    for field in dataclasses.fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, np.ndarray):
            if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
                return False
        elif one != other:
            return False
    return True


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert same(wire.decode(wire.to_bytes(message)), message)


@given(MESSAGES, st.data())
def test_damaged_bytes_never_raise_anything_else(message: Message, data: st.DataObject) -> None:
    frame = bytearray(wire.to_bytes(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))]
    with contextlib.suppress(wire.FrameError):
        wire.decode(bytes(frame))


def segment_frame(**changes: Any) -> pb.Frame:
    fields: dict[str, Any] = {
        "session": "s",
        "positions": [4, 5],
        "parents": [-1, 4],
        "payload": pb.Tensor(dtype=pb.DTYPE_INT32, shape=[2]),
    }
    return pb.Frame(segment=pb.Segment(**{**fields, **changes}))


def tensor(**changes: Any) -> pb.Tensor:
    return pb.Tensor(**{"dtype": pb.DTYPE_INT32, "shape": [2], **changes})


MALFORMED = {
    "no body": pb.Frame(),
    "no session": pb.Frame(open=pb.Open(capacity=5)),
    "long session": pb.Frame(open=pb.Open(session="s" * 65)),
    "control characters": pb.Frame(credit=pb.Credit(session="a\nb")),
    "capacity": pb.Frame(open=pb.Open(session="s", capacity=1 << 63)),
    "unknown dtype": segment_frame(payload=tensor(dtype=77)),
    "no dtype": segment_frame(payload=tensor(dtype=0)),
    "a larger shape": segment_frame(payload=tensor(shape=[3])),
    "a smaller shape": segment_frame(payload=tensor(shape=[1])),
    "padding that did not come": segment_frame(padding=1),
    "padding beyond all bounds": segment_frame(padding=(1 << 64) - 1),
    "overflowing shape": segment_frame(payload=tensor(shape=[1 << 32, 1 << 32])),
    "zero times huge": segment_frame(positions=[], parents=[], payload=tensor(shape=[0, 1 << 63]), padding=8),
    "no shape": segment_frame(payload=tensor(shape=[])),
    "three dimensions": segment_frame(payload=tensor(shape=[2, 1, 1])),
    "rows differ": segment_frame(positions=[4], parents=[1]),
    "parents differ": segment_frame(parents=[1]),
    "negative position": segment_frame(positions=[-1, 0]),
    "negative parent": segment_frame(parents=[-2, 0]),
    "huge position": segment_frame(positions=[(1 << 63) - 1, 0]),
    "huge epoch": segment_frame(epoch=1 << 63),
    "too many rows": segment_frame(positions=[0] * (wire.MAX_ROWS + 1)),
    "tokens differ": segment_frame(tokens=[3]),
    "huge token": segment_frame(tokens=[1 << 63, 0]),
    "drawn tokens differ": segment_frame(drawn=[3, 4, 5]),
    "negative drawn token": segment_frame(drawn=[3, -2]),
    "times of other stages": segment_frame(computed_rows=[2, 2], computed_us=[5], waited_us=[0, 0]),
    "huge time of a stage": segment_frame(computed_rows=[2], computed_us=[1 << 63], waited_us=[0]),
    "a stage without a wait": segment_frame(computed_rows=[2], computed_us=[5]),
    "more rows than are on the path": segment_frame(drawn=[3, -1]),
    "temperature": pb.Frame(open=pb.Open(session="s", drawing=pb.Drawing(top_p=1, temperature=-1))),
    "temperature is no number": pb.Frame(
        open=pb.Open(session="s", drawing=pb.Drawing(top_p=1, temperature=float("nan")))
    ),
    "top_p": pb.Frame(open=pb.Open(session="s", drawing=pb.Drawing())),
    "seed": pb.Frame(open=pb.Open(session="s", drawing=pb.Drawing(top_p=1, seed=1 << 63))),
    "retained descends": pb.Frame(prune=pb.Prune(session="s", retained=[3, 2])),
    "retained repeats": pb.Frame(prune=pb.Prune(session="s", retained=[3, 3])),
    "retained is huge": pb.Frame(prune=pb.Prune(session="s", retained=[(1 << 64) - 1])),
    "accepts too many": pb.Frame(prune=pb.Prune(session="s", retained=[3], accepted=2)),
    "busy is no number": pb.Frame(close=pb.Close(session="s", reports=[pb.StageReport(busy_s=float("nan"))])),
    "too many reports": pb.Frame(close=pb.Close(session="s", reports=[pb.StageReport()] * 1025)),
    "long reason": pb.Frame(fault=pb.Fault(session="s", reason="x" * 5000)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_frames_are_refused(case: str) -> None:
    with pytest.raises(wire.FrameError) as caught:
        wire.from_frame(MALFORMED[case], bytes(8) if MALFORMED[case].HasField("segment") else b"")
    unreadable = case in {"no body", "no session", "long session", "control characters"}
    assert caught.value.session == ("" if unreadable else "s")


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", bytes(7), b"\1\0\0\0\0\0\0\0\xff", bytes(9)])
def test_bytes_that_are_no_frame(data: bytes) -> None:
    with pytest.raises(wire.FrameError):
        wire.decode(data)


@pytest.mark.parametrize(
    "message", [Open("s", 1), Open("s", 300, prefix=Prefix("t", 150, 128)), Credit("s"), Heartbeat(1)]
)
def test_only_segments_have_a_tail(message: Message) -> None:
    with pytest.raises(wire.FrameError):
        wire.from_frame(wire.to_head(message), b"x")


def test_a_payload_is_not_copied_to_be_sent_and_read() -> None:
    one = np.zeros(1, dtype=np.int64)
    segment = Segment("s", 0, 0, False, 0, one, one, np.ones((1, 2), np.float32))
    frame = wire.encode(segment)
    assert np.shares_memory(np.frombuffer(frame.tail, np.float32), segment.payload)
    tail = bytearray(frame.tail)
    message, _ = wire.read(frame.start[wire.LENGTHS.size :], tail)
    assert isinstance(message, Segment)
    assert np.shares_memory(message.payload, np.frombuffer(tail, np.float32))
    assert not message.payload.flags.writeable


def test_a_payload_of_another_dtype_is_a_mistake_of_ours() -> None:
    one = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="float64"):
        wire.encode(Segment("s", 0, 0, False, 0, one, one, np.zeros((1, 2))))


@pytest.mark.parametrize(
    ("departed", "read"), [(0.0, 0.0), (12.5, 12.5), (float("nan"), 0.0), (float("inf"), 0.0)]
)
def test_when_a_message_departed_travels_with_it(departed: float, read: float) -> None:
    head = wire.to_head(Credit("s"))
    head.departed = departed
    assert wire.read(head.SerializeToString(), b"") == (Credit("s"), read)
