"""Parts of OpenAI's answers: heads, ids, deltas of streams."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowedge.client import Chunk, ToolCall, ToolCallDelta

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "tool_calls": "tool_calls"}
DONE = "[DONE]"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def new_id(prefix: str) -> str:
    """Return an id such as chatcmpl-... that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


def encoded(content: Any) -> str:
    """Return JSON without blanks."""
    return _encode(content)


@dataclass(frozen=True)
class AnswerHead:
    """The fields that an answer and all chunks of its stream begin with.

    Attributes:
        kind: of the object, such as "chat.completion".
        created: seconds since 1970.
    """

    id: str
    kind: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str = "") -> dict[str, Any]:
        """Return the fields; of an object of another kind if it is given."""
        return {
            "id": self.id,
            "object": kind or self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChunkWriter:
    """Writes the chunks of a stream. What all of them have in common is encoded once."""

    def __init__(
        self,
        head: AnswerHead,
        kind: str,
        *,
        includes_usage: bool,
        counted: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """
        kind: of the chunks.
        includes_usage: whether the stream ends with the usage; the other chunks then say that theirs is null.
        counted: returns the usage so far, which then every chunk has.
        """
        self._begin = encoded(head.fields(kind))[:-1] + ',"choices":['
        self._end = '],"usage":null}' if includes_usage else "]}"
        self._counted = counted

    def choice(self, choice: dict[str, Any]) -> str:
        """Return the chunk with one choice."""
        if self._counted is not None:
            return f'{self._begin}{encoded(choice)}],"usage":{encoded(self._counted())}}}'
        return f"{self._begin}{encoded(choice)}{self._end}"

    def usage(self, usage: dict[str, Any]) -> str:
        """Return the last chunk, which has the usage and no choice."""
        return f'{self._begin}],"usage":{encoded(usage)}}}'


def delta_of(chunk: Chunk) -> dict[str, Any]:
    """Return what a chunk adds to a message; empty if it completes no text."""
    delta: dict[str, Any] = {}
    if chunk.reasoning:
        delta["reasoning_content"] = chunk.reasoning
    if chunk.text:
        delta["content"] = chunk.text
    if chunk.tool_calls:
        delta["tool_calls"] = [_call_delta(call) for call in chunk.tool_calls]
    return delta


def called_tools(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Return the tool calls of a message."""
    return [call.to_dict() for call in calls]


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    """Return a part of a tool call; only the first part of a call has its id and name."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}
