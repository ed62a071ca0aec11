"""The output items of a response, built from an answer's chunks, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowedge.client import Chunk, ToolCallDelta
from flowedge.gateway.answers.logprobs import chat_logprobs
from flowedge.gateway.openai.chunks import new_id

Event: TypeAlias = dict[str, Any]
"""An event of a stream, without its number."""


@dataclass(frozen=True)
class TextKind:
    """What items of text differ in.

    Attributes:
        prefix: of their ids.
        event: the beginning of the names of their events.
        part: their content while it is empty.
    """

    name: str
    prefix: str
    event: str
    item: dict[str, Any]
    part: dict[str, Any]


MESSAGE = TextKind(
    "message",
    "msg_",
    "response.output_text",
    {"role": "assistant"},
    {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
)
REASONING = TextKind(
    "reasoning", "rs_", "response.reasoning_text", {"summary": []}, {"type": "reasoning_text", "text": ""}
)


class _TextItem:
    """A message, or reasoning, with one part of content."""

    def __init__(self, kind: TextKind, place: int) -> None:
        self.kind, self._place = kind, place
        self._part = {**kind.part}
        self._logprobs: list[dict[str, Any]] = []
        self.item: dict[str, Any] = {
            "id": new_id(kind.prefix),
            "type": kind.name,
            "status": "in_progress",
            **kind.item,
            "content": [],
        }

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", "output_index": self._place, "item": {**self.item}}
        yield {"type": "response.content_part.added", **self._where(), "part": {**self._part}}

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self._part["text"] += text
        self._logprobs += logprobs
        if text or logprobs:
            yield {
                "type": f"{self.kind.event}.delta",
                **self._where(),
                "delta": text,
                **self._listed(logprobs),
            }

    def end(self, status: str) -> Iterator[Event]:
        text = self._part["text"]
        self._part |= self._listed(self._logprobs)
        self.item |= {"status": status, "content": [self._part]}
        yield {
            "type": f"{self.kind.event}.done",
            **self._where(),
            "text": text,
            **self._listed(self._logprobs),
        }
        yield {"type": "response.content_part.done", **self._where(), "part": self._part}
        yield {"type": "response.output_item.done", "output_index": self._place, "item": self.item}

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.item["id"], "output_index": self._place, "content_index": 0}

    def _listed(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": logprobs} if self.kind is MESSAGE else {}


class _CallItem:
    """A call of a function."""

    def __init__(self, delta: ToolCallDelta, place: int) -> None:
        self.index, self._place = delta.index, place
        self.item: dict[str, Any] = {
            "id": new_id("fc_"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": delta.id,
            "name": delta.name,
            "arguments": "",
        }

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.output_item.added", "output_index": self._place, "item": {**self.item}}

    def add(self, arguments: str) -> Iterator[Event]:
        self.item["arguments"] += arguments
        if arguments:
            yield {"type": "response.function_call_arguments.delta", **self._where(), "delta": arguments}

    def end(self, status: str) -> Iterator[Event]:
        self.item["status"] = status
        done = {"arguments": self.item["arguments"], "name": self.item["name"]}
        yield {"type": "response.function_call_arguments.done", **self._where(), **done}
        yield {"type": "response.output_item.done", "output_index": self._place, "item": self.item}

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.item["id"], "output_index": self._place}


class ResponseOutput:
    """The items so far. One item is open at a time; each call of a function is an item of its own.

    Attributes:
        items: in OpenAI's form.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: _TextItem | _CallItem | None = None

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """Add a chunk, and yield its events."""
        if chunk.reasoning:
            yield from self._add_text(REASONING, chunk.reasoning, [])
        if chunk.text or chunk.logprobs:
            yield from self._add_text(MESSAGE, chunk.text, chat_logprobs(chunk.logprobs))
        for delta in chunk.tool_calls:
            yield from self._add_call(delta)

    def finish(self, status: str) -> Iterator[Event]:
        """Close the last item, and yield the events of that.

        Args:
            status: "completed" or "incomplete".
        """
        if not self.items:
            yield from self._add_text(MESSAGE, "", [])
        yield from self._close(status)

    def _add_text(self, kind: TextKind, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        opened = self._open
        if not (isinstance(opened, _TextItem) and opened.kind is kind):
            opened = _TextItem(kind, len(self.items))
            yield from self._begin(opened)
        yield from opened.add(text, logprobs)

    def _add_call(self, delta: ToolCallDelta) -> Iterator[Event]:
        opened = self._open
        if not (isinstance(opened, _CallItem) and opened.index == delta.index):
            opened = _CallItem(delta, len(self.items))
            yield from self._begin(opened)
        yield from opened.add(delta.arguments)

    def _begin(self, item: _TextItem | _CallItem) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        self.items.append(item.item)
        yield from item.begin()

    def _close(self, status: str) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
            self._open = None
