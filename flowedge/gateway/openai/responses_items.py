"""Items of a response's input, from OpenAI's form to the client's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from flowedge.client import ChatMessage, ToolCall
from flowedge.gateway.answers.body import BodyObject, CheckedList, not_supported, refused_value
from flowedge.gateway.answers.planned import with_tool_names
from flowedge.gateway.openai.messages import ContentItem, text_of


class InputItem(BodyObject, extra="ignore"):
    """An item of any type; a message where the type is missing.

    Other fields are ignored: clients send back the items that they got, with ids and a status.
    """

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: CheckedList[ContentItem] = Field(default_factory=list)
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: CheckedList[ContentItem] = Field(default_factory=list)

    @field_validator("content", "output", mode="before")
    @classmethod
    def _parts(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content


class _AssistantMessage:
    """The items of the assistant's message that is being read."""

    def __init__(self) -> None:
        self.reasoning, self.text = "", ""
        self.calls: list[ToolCall] = []

    def message(self) -> list[ChatMessage]:
        """Return the message; nothing if there was no item."""
        if not (self.reasoning or self.text or self.calls):
            return []
        return [ChatMessage("assistant", self.text, self.reasoning, tuple(self.calls))]


def input_messages(instructions: str, items: Sequence[InputItem]) -> list[ChatMessage]:
    """Return the conversation that items are; what the assistant said in several items is one message.

    Raises:
        ApiError: when an item has a type or content that is not supported, or a field is missing.
    """
    messages = [ChatMessage("system", instructions)] if instructions else []
    turn = _AssistantMessage()
    for place, item in enumerate(items):
        where = f"input[{place}]"
        if item.type == "reasoning" or (item.type == "message" and item.role == "assistant"):
            if turn.text or turn.calls:
                messages += turn.message()
                turn = _AssistantMessage()
            if item.type == "reasoning":
                turn.reasoning += text_of(item.content, f"{where}.content")
            else:
                turn.text = text_of(item.content, f"{where}.content")
        elif item.type == "function_call":
            turn.calls.append(_call_of(item, where))
        else:
            messages += [*turn.message(), _message_of(item, where)]
            turn = _AssistantMessage()
    return with_tool_names([*messages, *turn.message()])


def _call_of(item: InputItem, where: str) -> ToolCall:
    for name in ("call_id", "name"):
        if not getattr(item, name):
            raise refused_value(f"{where}.{name}", f"{where}.{name} is missing")
    return ToolCall(item.call_id, item.name, item.arguments or "{}")


def _message_of(item: InputItem, where: str) -> ChatMessage:
    """Return the message of an item that is not the assistant's."""
    if item.type == "function_call_output":
        output = text_of(item.output, f"{where}.output")
        return ChatMessage("tool", output, tool_call_id=item.call_id)
    if item.type != "message":
        raise not_supported(
            f"{where}.type", ("message", "function_call", "function_call_output", "reasoning")
        )
    if item.role is None:
        raise refused_value(f"{where}.role", f"{where}.role is missing")
    role = "system" if item.role == "developer" else item.role
    return ChatMessage(role, text_of(item.content, f"{where}.content"))
