"""Messages of a chat, from OpenAI's form to the client's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from flowedge.client import ChatMessage, ToolCall
from flowedge.gateway.answers.body import BodyObject, CheckedList, not_supported, refused_value
from flowedge.gateway.answers.planned import with_tool_names
from flowedge.gateway.errors import ApiError

TEXT_PARTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal")


class ContentItem(BodyObject, extra="ignore"):
    """A part of a message's content; parts of other types than text are refused by `text_of`."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(BodyObject):
    name: str = Field(min_length=1)
    arguments: str = ""


class CalledTool(BodyObject, extra="ignore"):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class MessageBody(BodyObject, extra="ignore"):
    """One message. Other fields are ignored: clients send back what they got, with fields of their own.

    Attributes:
        reasoning_content: of the assistant: what it thought before its answer.
        reasoning: the same field, as some clients name it.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: CheckedList[ContentItem] = Field(default_factory=list)
    name: str = ""
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: CheckedList[CalledTool] = Field(default_factory=list)
    tool_call_id: str = ""
    function_call: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _parts(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content


def chat_messages(messages: list[MessageBody]) -> list[ChatMessage]:
    """Return the messages for the client.

    Raises:
        ApiError: when a message has content that is not text, or another field that is not supported.
    """
    found = [_chat_message(each, f"messages[{place}]") for place, each in enumerate(messages)]
    return with_tool_names(found)


def _chat_message(message: MessageBody, where: str) -> ChatMessage:
    for name in ("function_call", "audio"):
        if getattr(message, name):
            raise not_supported(f"{where}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise refused_value(f"{where}.tool_calls", f"{where}.tool_calls is for messages of the assistant")
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=text_of(message.content, f"{where}.content"),
        reasoning=message.reasoning_content or message.reasoning if message.role == "assistant" else "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments or "{}")
            for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id if message.role == "tool" else "",
        name=message.name if message.role == "tool" else "",
    )


def text_of(parts: list[ContentItem], where: str) -> str:
    """Return the text of a content; `where` is the content's place in the body.

    Raises:
        ApiError: when a part is not text.
    """
    texts = []
    for place, part in enumerate(parts):
        if part.type not in TEXT_PARTS:
            problem = f"{where}[{place}] is of the type {part.type[:40]!r}; only text is supported"
            raise ApiError(400, problem, param=f"{where}[{place}]", code="unsupported_parameter")
        texts.append((part.refusal if part.type == "refusal" else part.text) or "")
    return "".join(texts)
