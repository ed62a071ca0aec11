"""Conversion of the message that opens a session."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.messages import Drawing, Open, Prefix
from flowedge.core.sampling import SamplingParams
from flowedge.protocol.fields import index, int64, is_session_id
from flowedge.protocol.frame_bounds import MAX_SESSION_ID
from flowedge.v1 import pipeline_pb2 as pb


def open_to_pb(message: Open) -> pb.Open:
    """Return the protobuf form of an Open."""
    drawing, prefix = message.drawing, message.prefix
    return pb.Open(
        session=message.session,
        capacity=message.capacity,
        drawing=None if drawing is None else _drawing_to_pb(drawing),
        keeps_taps=message.keeps_taps,
        computed_alone=message.computed_alone,
        prefix=None if prefix is None else _prefix_to_pb(prefix),
    )


def open_from_pb(message: pb.Open) -> Open:
    """Return the Open of a protobuf form. Raises ProtocolError when a field is out of bounds."""
    drawing = _drawing_from_pb(message.drawing) if message.HasField("drawing") else None
    prefix = None
    if message.HasField("prefix"):
        if not is_session_id(message.prefix.source):
            raise ProtocolError(
                f"the session of the prefix must be 1 to {MAX_SESSION_ID} printable ASCII characters"
            )
        prefix = Prefix(message.prefix.source, index(message.prefix.rows), index(message.prefix.shared))
    capacity = index(message.capacity)
    return Open(message.session, capacity, drawing, message.keeps_taps, message.computed_alone, prefix)


def _prefix_to_pb(prefix: Prefix) -> pb.Prefix:
    return pb.Prefix(source=prefix.session, rows=prefix.rows, shared=prefix.shared)


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
            top_k=index(drawing.top_k),
            top_p=drawing.top_p,
            seed=drawing.seed,
        )
    except BadRequestError as error:
        raise ProtocolError(str(error)) from error
    return Drawing(
        sampling,
        index(drawing.prompt_rows),
        drawing.features,
        index(drawing.max_new_tokens),
        frozenset(int64(drawing.eos, least=0).tolist()),
    )
