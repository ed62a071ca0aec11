"""The body of a request to /api/chat."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from flowedge.client import ChatMessage, ToolCall
from flowedge.gateway.answers.body import BodyObject, CheckedList, not_supported, refused_value
from flowedge.gateway.answers.planned import ChatPrompt, Prompt, ToolUse, with_tool_names
from flowedge.gateway.ollama.options import AnswerBody

MAX_MESSAGES = 1024
MAX_TOOLS = 128


class CalledFunctionBody(BodyObject, extra="ignore"):
    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallBody(BodyObject, extra="ignore"):
    id: str = ""
    function: CalledFunctionBody


class ChatMessageBody(BodyObject, extra="ignore"):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    images: list[Any] = Field(default_factory=list)
    tool_calls: CheckedList[CallBody] = Field(default_factory=list)
    tool_name: str = ""
    name: str = ""
    tool_call_id: str = ""


class ToolFunctionBody(BodyObject, extra="ignore"):
    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


class FunctionToolBody(BodyObject, extra="ignore"):
    type: Literal["function"] = "function"
    function: ToolFunctionBody


class ChatBody(AnswerBody):
    """What a client asks of /api/chat."""

    messages: list[ChatMessageBody] = Field(default_factory=list, max_length=MAX_MESSAGES)
    tools: list[FunctionToolBody] = Field(default_factory=list, max_length=MAX_TOOLS)

    def prompt(self) -> ChatPrompt:
        """Return the conversation.

        Raises:
            ApiError: when a message has images.
        """
        tools = tuple({"type": "function", "function": tool.function.model_dump()} for tool in self.tools)
        return ChatPrompt(chat_messages(self.messages), ToolUse(tools), self.template_values())


def chat_messages(messages: list[ChatMessageBody]) -> list[ChatMessage]:
    """Return the messages for the client; a tool's message answers the first call that has no answer yet.

    Raises:
        ApiError: when a message has images.
    """
    found = []
    open_calls: list[ToolCall] = []
    for place, message in enumerate(messages):
        if message.images:
            raise not_supported(f"messages[{place}].images")
        calls = tuple(
            ToolCall(
                call.id or f"call_{place}_{number}",
                call.function.name,
                json.dumps(call.function.arguments, ensure_ascii=False),
            )
            for number, call in enumerate(message.tool_calls)
        )
        open_calls.extend(calls)
        call_id = message.tool_call_id
        if message.role == "tool" and not call_id and open_calls:
            call_id = open_calls.pop(0).id
        found.append(
            ChatMessage(
                message.role,
                message.content,
                reasoning=message.thinking if message.role == "assistant" else "",
                tool_calls=calls,
                tool_call_id=call_id,
                name=message.tool_name or message.name if message.role == "tool" else "",
            )
        )
    return with_tool_names(found)


class GenerateBody(AnswerBody):
    """What a client asks of /api/generate.

    Attributes:
        raw: continue the prompt as it is, without the chat template.
    """

    unsupported: ClassVar = {
        "context": ([],),
        "height": (0,),
        "images": ([],),
        "steps": (0,),
        "suffix": ("",),
        "template": ("",),
        "width": (0,),
    }

    prompt: str = ""
    system: str = ""
    raw: bool = False

    def full_prompt(self) -> Prompt:
        """Return the prompt, with the system message before it.

        Raises:
            ApiError: when a raw prompt comes with a system message.
        """
        if self.raw:
            if self.system:
                raise refused_value("system", "system does not go with raw; write it into the prompt")
            return self.prompt
        system = [ChatMessage("system", self.system)] if self.system else []
        return ChatPrompt([*system, ChatMessage("user", self.prompt)], template_values=self.template_values())
