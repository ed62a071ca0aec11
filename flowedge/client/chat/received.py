"""The parts of an answer as a draft node sends them, checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flowedge.client.chat.messages import ToolCall
from flowedge.core.errors import ProtocolError
from flowedge.v1 import generation_pb2 as pb

_MOST_LOGPROB = 1e-6  # rounding


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability that the model gives a token, before temperature, penalties, biases and grammar.

    Attributes:
        text: UTF-8 of the token, which may be a part of a character.
        likeliest: the likeliest tokens at this place, the likeliest first.
    """

    token_id: int
    logprob: float
    text: bytes
    likeliest: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ToolCallDelta:
    """The next part of a tool call.

    Attributes:
        index: counts the tool calls of the answer from 0.
        id, name: in the first part of a call; "" in others.
        arguments: the next part of the JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


def read_logprobs(chunk: pb.Chunk) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of a chunk.

    Raises:
        ProtocolError: when there is not one for each token, or a value cannot be true.
    """
    if chunk.logprobs and [each.token_id for each in chunk.logprobs] != list(chunk.token_ids):
        raise ProtocolError("the draft node sent log-probabilities that are not those of its tokens")
    return tuple(_logprob(each, tuple(map(_logprob, each.likeliest))) for each in chunk.logprobs)


def _logprob(sent: pb.TokenLogprob, likeliest: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    if math.isnan(sent.logprob) or sent.logprob > _MOST_LOGPROB:
        raise ProtocolError(f"the draft node sent a log-probability of {sent.logprob}")
    return TokenLogprob(sent.token_id, sent.logprob, sent.text, likeliest)


def read_deltas(chunk: pb.Chunk) -> tuple[ToolCallDelta, ...]:
    return tuple(ToolCallDelta(each.index, each.id, each.name, each.arguments) for each in chunk.tool_calls)


def add_deltas(calls: Sequence[ToolCall], deltas: Iterable[ToolCallDelta]) -> list[ToolCall]:
    """Return tool calls with further parts.

    Raises:
        ProtocolError: when a part belongs to no call, or a call begins without a name or has two.
    """
    added = list(calls)
    for delta in deltas:
        if delta.index == len(added):
            if not (delta.id and delta.name):
                raise ProtocolError("the draft node sent a tool call without an id or a name")
            added.append(ToolCall(delta.id, delta.name, delta.arguments))
        elif delta.index < len(added) and not (delta.id or delta.name):
            call = added[delta.index]
            added[delta.index] = replace(call, arguments=call.arguments + delta.arguments)
        else:
            raise ProtocolError(
                f"the draft node sent a part of tool call {delta.index} after {len(added)} calls"
            )
    return added
