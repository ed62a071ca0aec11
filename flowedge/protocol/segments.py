"""Segments and batches of them in frames."""

from __future__ import annotations

from flowedge.core.arrays import NO_TOKEN
from flowedge.core.errors import ProtocolError
from flowedge.core.message_limits import BATCH_SEGMENTS
from flowedge.core.messages import Segment, SegmentBatch, StageTime
from flowedge.protocol.fields import index, int64, session_of, tensor_bytes, tensor_from_pb, tensor_to_pb
from flowedge.protocol.frame_bounds import MAX_ROWS, FrameError
from flowedge.v1 import pipeline_pb2 as pb


def segment_to_pb(segment: Segment) -> pb.Segment:
    """Return the head of a segment. Raises ValueError for a payload of a dtype that frames do not carry."""
    return pb.Segment(
        session=segment.session,
        number=segment.number,
        epoch=segment.epoch,
        committed=segment.committed,
        first_row=segment.first_row,
        positions=segment.positions.tolist(),
        parents=segment.parents.tolist(),
        payload=tensor_to_pb(segment.payload),
        tokens=None if segment.tokens is None else segment.tokens.tolist(),
        drawn=None if segment.drawn is None else segment.drawn.tolist(),
        computed_rows=[time.rows for time in segment.stage_times],
        computed_us=[round(time.seconds * 1e6) for time in segment.stage_times],
        waited_us=[round(time.waited * 1e6) for time in segment.stage_times],
    )


def segment_from_pb(segment: pb.Segment, tail: bytes | bytearray | memoryview) -> Segment:
    """Return the segment with this head and tail. Raises ProtocolError when a rule is broken."""
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
    if len(segment.computed_us) != len(segment.waited_us):
        raise ProtocolError(
            f"times of {len(segment.computed_us)} stages but waits of {len(segment.waited_us)}"
        )
    payload = tensor_from_pb(segment.payload, tail, segment.padding)
    positions, parents = int64(segment.positions, least=0), int64(segment.parents, least=-1)
    read = Segment(
        session=segment.session,
        number=index(segment.number),
        epoch=index(segment.epoch),
        committed=segment.committed,
        first_row=index(segment.first_row),
        positions=positions,
        parents=parents,
        payload=payload,
        tokens=int64(segment.tokens, least=0) if segment.tokens else None,
        drawn=int64(segment.drawn, least=NO_TOKEN) if segment.drawn else None,
        stage_times=tuple(
            StageTime(index(rows), index(us) / 1e6, index(waited) / 1e6)
            for rows, us, waited in zip(
                segment.computed_rows, segment.computed_us, segment.waited_us, strict=True
            )
        ),
    )
    if len(payload) != len(read.carried):
        raise ProtocolError(f"{len(read.carried)} rows are carried but the payload has {len(payload)}")
    return read


def batch_from_pb(batch: pb.Batch, tail: bytes | bytearray) -> SegmentBatch:
    """Return the batch with this head and tail.

    Raises:
        FrameError: when a rule is broken in any of its segments.
    """
    if len(batch.segments) > BATCH_SEGMENTS:
        raise FrameError("", f"batch: {len(batch.segments)} segments; at most {BATCH_SEGMENTS} are allowed")
    rest, segments = memoryview(tail), list[Segment]()
    for segment in batch.segments:
        session = session_of(segment)
        try:
            size = tensor_bytes(segment.payload) + segment.padding
            segments.append(segment_from_pb(segment, rest[:size]))
        except ProtocolError as error:
            raise FrameError(session, f"batch: {error}") from error
        rest = rest[size:]
    if rest or len({segment.session for segment in segments}) < max(len(segments), 1):
        raise FrameError("", "batch: its segments are not those of different sessions that its tail has")
    return SegmentBatch(tuple(segments))
