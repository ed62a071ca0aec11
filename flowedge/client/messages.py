"""The messages of a conversation, and the tools that it offers to the model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowedge.core.errors import BadRequestError, wrong_type
from flowedge.core.grammar import json_text
from flowedge.core.plain_text import checked_utf8
from flowedge.v1 import generation_pb2 as pb

ROLES = ("system", "user", "assistant", "tool")
_OTHER_NAMES = {"developer": "system"}  # of roles, in OpenAI's form
_KEYS = ("role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for.

    Attributes:
        id: names the call in the answer of the tool.
        arguments: JSON object as text.
    """

    id: str
    name: str
    arguments: str

    @property
    def values(self) -> dict[str, Any]:
        """The arguments as a dict.

        Raises:
            BadRequestError: when the text is no JSON object, as in an answer that ended within the call.
        """
        return json_object(self.arguments, f"the arguments of the call of {self.name}")

    def to_dict(self) -> dict[str, Any]:
        """Return the call in OpenAI's form."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    def to_proto(self) -> pb.ToolCall:
        return pb.ToolCall(id=self.id, name=self.name, arguments=self.arguments)


@dataclass(frozen=True)
class ChatMessage:
    """A message of a conversation.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        reasoning: of the assistant: what it thought before its answer.
        tool_calls: of the assistant.
        tool_call_id, name: of a tool: the call that it answers, and the tool's name.

    Raises:
        BadRequestError: when a value has the wrong type, or does not fit the role.
    """

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        for key in ("role", "content", "reasoning", "tool_call_id", "name"):
            value = getattr(self, key)
            if not isinstance(value, str):
                raise wrong_type(f"the {key} of a message", value, "text")
            checked_utf8(value, f"the {key} of a message")
        if self.role not in ROLES:
            raise BadRequestError(f"a message has the role {self.role!r}; it must be {', '.join(ROLES)}")
        if self.role != "assistant" and (self.reasoning or self.tool_calls):
            raise BadRequestError(
                f"a message of the role {self.role!r} has reasoning or tool_calls; only the assistant's may"
            )
        if self.role != "tool" and self.tool_call_id:
            raise BadRequestError(
                f"a message of the role {self.role!r} has a tool_call_id; only a tool's may"
            )
        for call in self.tool_calls:
            if not isinstance(call, ToolCall):
                raise wrong_type("an element of tool_calls", call, "a ToolCall")
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))

    @classmethod
    def from_dict(cls, message: Mapping[str, Any]) -> ChatMessage:
        """Read a message in OpenAI's form.

        Raises:
            BadRequestError: when the message makes no sense, or has a part that is not supported.
        """
        unknown = [key for key, value in message.items() if key not in _KEYS and value]
        if unknown:
            raise BadRequestError(
                f"a message has {unknown[0]!r}, which is not supported; it may have {', '.join(_KEYS)}"
            )
        role = message.get("role")
        return cls(
            role=_OTHER_NAMES.get(role, role) if isinstance(role, str) else str(role),
            content=_text_of(message.get("content")),
            reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
            tool_calls=_calls_of(message.get("tool_calls")),
            tool_call_id=message.get("tool_call_id") or "",
            name=message.get("name") or "",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the message in OpenAI's form, from which `from_dict` makes it again."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        message |= {
            key: value
            for key, value in (
                ("reasoning", self.reasoning),
                ("tool_calls", [call.to_dict() for call in self.tool_calls]),
                ("tool_call_id", self.tool_call_id),
                ("name", self.name),
            )
            if value
        }
        return message

    def to_proto(self) -> pb.ChatMessage:
        return pb.ChatMessage(
            role=self.role,
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=[call.to_proto() for call in self.tool_calls],
            tool_call_id=self.tool_call_id,
            name=self.name,
        )


def checked_messages(messages: Sequence[ChatMessage | Mapping[str, Any]]) -> list[ChatMessage]:
    """Return messages that are given as they are or in OpenAI's form.

    Raises:
        BadRequestError: when there is no message, or one makes no sense.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise wrong_type("messages", messages, "a list of messages")
    if not messages:
        raise BadRequestError("messages is empty; a conversation has one message or more")
    found = []
    for place, message in enumerate(messages):
        if isinstance(message, ChatMessage):
            found.append(message)
        elif isinstance(message, Mapping):
            found.append(ChatMessage.from_dict(message))
        else:
            raise wrong_type(f"messages[{place}]", message, "a ChatMessage or a dict")
    return found


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object that a text holds; `name` says whose text it is.

    Raises:
        BadRequestError: when the text holds no JSON object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{name} are no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequestError(f"{name} are {text:.80}; they must be a JSON object")
    return content


def _text_of(content: Any) -> str:
    """Return the text of a message's content in OpenAI's form: a text, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise wrong_type("the content of a message", content, "text or a list of text parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise BadRequestError(
                f"a message has content of the type {kind!r}; only text is supported: "
                '{"type": "text", "text": ...}'
            )
        texts.append(part["text"])
    return "".join(texts)


def _calls_of(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if isinstance(calls, str | bytes) or not isinstance(calls, Sequence):
        raise wrong_type("tool_calls", calls, "a list of tool calls")
    return tuple(map(_call_of, calls))


def _call_of(call: Any) -> ToolCall:
    """Return a tool call that is given as it is or in OpenAI's form."""
    if isinstance(call, ToolCall):
        return call
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise wrong_type("a tool call", call, '{"id", "type": "function", "function": {"name", "arguments"}}')
    call_id, name = call.get("id") or "", function.get("name")
    arguments = function.get("arguments") or "{}"
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise wrong_type("the id, the name or the arguments of a tool call", call, "text")
    return ToolCall(str(call_id), str(name), str(arguments))


AUTO, NONE, REQUIRED, FUNCTION = "auto", "none", "required", "function"
_FORM = '{"type": "function", "function": {"name", "description", "parameters"}}'


@dataclass(frozen=True)
class ToolOffer:
    """What a conversation is answered with, beside its messages.

    Attributes:
        tools: JSON objects in OpenAI's form.
        choice: "auto", "none", "required", or the name of the tool to call.
        parallel: whether the answer may call several tools.
        template_values: further values for the model's chat template.

    Raises:
        BadRequestError: when a value has the wrong type, a tool is malformed, or `choice` names no tool.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = AUTO
    parallel: bool = True
    template_values: Mapping[str, Any] | None = field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.tools, str | bytes | Mapping) or not isinstance(self.tools, Sequence):
            raise wrong_type("tools", self.tools, f"a list of dicts of the form {_FORM}")
        names = [_name_of(tool, place) for place, tool in enumerate(self.tools)]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise BadRequestError(f"tools has {twice!r} twice; give each tool a name of its own")
        if not isinstance(self.choice, str):
            raise wrong_type("tool_choice", self.choice, '"auto", "none", "required" or the name of a tool')
        if self.choice == REQUIRED and not names:
            raise BadRequestError('tool_choice is "required", and there are no tools')
        if self.choice not in (AUTO, NONE, REQUIRED, *names):
            raise BadRequestError(
                f"tool_choice is {self.choice!r}; it must be auto, none, required or the name of a tool"
                + (f": {', '.join(names)}" if names else "")
            )
        if not isinstance(self.parallel, bool):
            raise wrong_type("parallel_tool_calls", self.parallel, "True or False")

    def conversation(self, messages: Sequence[ChatMessage]) -> pb.Conversation:
        """Return the form on the wire of these messages with this offer.

        Raises:
            BadRequestError: when a tool or the template values are no JSON.
        """
        named = self.choice not in (AUTO, NONE, REQUIRED)
        return pb.Conversation(
            messages=[message.to_proto() for message in messages],
            tools=[json_text(f"tools[{place}]", tool) for place, tool in enumerate(self.tools)],
            tool_choice=FUNCTION if named else self.choice,
            tool_name=self.choice if named else "",
            single_tool_call=not self.parallel,
            template_values=(
                json_text("template_values", self.template_values) if self.template_values else ""
            ),
        )


def _name_of(tool: Any, place: int) -> str:
    """Return the name of a tool in OpenAI's form.

    Raises:
        BadRequestError: when the tool does not have this form.
    """
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name or tool.get("type") != FUNCTION:
        raise wrong_type(f"tools[{place}]", tool, f"a dict of the form {_FORM}")
    return name
