"""The activity of a pipeline as a draft node reports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from flowedge.core.errors import ProtocolError
from flowedge.v1 import generation_pb2 as pb

ChangeKind: TypeAlias = Literal["grown", "sent", "accepted", "finished"]
T = TypeVar("T")


@dataclass(frozen=True)
class LinkState:
    """A link of a pipeline, from the device `sender` to the device `receiver`.

    Attributes:
        round_trip_s, bytes_per_s: 0 where they are not known.
        sent_bytes_per_s: over the last seconds.
    """

    sender: str
    receiver: str
    round_trip_s: float
    bytes_per_s: float
    sent_bytes_per_s: float


@dataclass(frozen=True)
class PipelineState:
    """Requests and speed of a pipeline.

    Attributes:
        tokens_per_s: of all requests, over the last seconds.
        tokens_per_segment: mean number of tokens put out for each returned segment with live draft rows, over
            the last seconds; 0 without such a segment.
        links: in pipeline order, from the draft node to the draft node.
    """

    running: int
    waiting: int
    tokens_per_s: float
    tokens_per_segment: float
    links: tuple[LinkState, ...]


@dataclass(frozen=True)
class ComputedSegment:
    """Work of a device, in seconds of the draft node's clock.

    Attributes:
        kind: "draft", "verify", "prefill" or "decode".
    """

    session: str
    device: str
    kind: str
    start: float
    end: float
    rows: int


@dataclass(frozen=True)
class TreeNode:
    """A node of a session's draft tree.

    Attributes:
        parent: -1 for the first node of a session.
        score: logarithm of the drafter's probability of the path.
    """

    number: int
    parent: int
    text: str
    score: float


@dataclass(frozen=True)
class TreeChange:
    """A change of the draft tree of a session.

    Attributes:
        nodes: that were grown, sent or accepted. Of accepted nodes the last is the new root: all that is not
            below it is pruned.
        reason: of "finished", why.
    """

    session: str
    at: float
    kind: ChangeKind
    nodes: tuple[TreeNode, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class PipelineActivity:
    """Activity of a pipeline since the message before.

    Attributes:
        now: the draft node's monotonic clock, in seconds, in which all times are.
        state: None where it has not changed.
        incomplete: whether activity was left out, because it was read too slowly or too much happened.
    """

    now: float
    state: PipelineState | None = None
    computed: tuple[ComputedSegment, ...] = ()
    trees: tuple[TreeChange, ...] = ()
    incomplete: bool = False

    @classmethod
    def from_proto(cls, message: pb.PipelineActivity, device: str) -> PipelineActivity:
        """Read a message of a draft node.

        Raises:
            ProtocolError: when the message makes no sense; it names the device.
        """
        try:
            return cls(
                now=_finite(message.now),
                state=_state(message.state) if message.HasField("state") else None,
                computed=tuple(_computed(each) for each in message.computed),
                trees=tuple(_change(each) for each in message.trees),
                incomplete=message.incomplete,
            )
        except ValueError as error:
            raise ProtocolError(f"device {device} tells of activity that makes no sense: {error}") from error


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"a number is {value}")
    return value


def _state(message: pb.PipelineState) -> PipelineState:
    return PipelineState(
        message.running,
        message.waiting,
        _finite(message.tokens_per_s),
        _finite(message.tokens_per_segment),
        tuple(_columns(LinkState, link) for link in message.links),
    )


def _computed(message: pb.ComputedSegment) -> ComputedSegment:
    computed = _columns(ComputedSegment, message)
    if computed.end < computed.start:
        raise ValueError(f"a computation goes from {computed.start} to {computed.end}")
    return computed


def _change(message: pb.TreeChange) -> TreeChange:
    kind = message.WhichOneof("change")
    if kind not in get_args(ChangeKind):
        raise ValueError("a tree has an unknown change")
    if kind == "finished":
        return TreeChange(message.session, _finite(message.at), kind, reason=message.finished.reason)
    told: pb.TreeNodes = getattr(message, kind)
    columns: Sequence[Sequence[Any]] = (told.nodes, told.parents, told.texts, told.scores)
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"a tree has {' and '.join(str(len(column)) for column in columns)} entries")
    nodes = tuple(TreeNode(*each) for each in zip(*columns, strict=True))
    for node in nodes:
        _finite(node.score)
    return TreeChange(message.session, _finite(message.at), kind, nodes)


def _columns(made: Callable[..., T], message: Any) -> T:
    """Return a dataclass with the fields of a message, whose numbers are finite."""
    values = {field.name: getattr(message, field.name) for field in fields(made)}  # type: ignore[arg-type]
    for value in values.values():
        if isinstance(value, float):
            _finite(value)
    return made(**values)
