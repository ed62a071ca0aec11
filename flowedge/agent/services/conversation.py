"""Conversations of requests, checked, in the form that chat templates take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flowedge.agent.agent_config import AgentLimits
from flowedge.core.errors import BadRequestError
from flowedge.text.json_object import is_nested_deeper
from flowedge.v1 import generation_pb2 as pb

MAX_MESSAGES = 1024  # of a conversation
MAX_TOOLS = 256
MAX_DEPTH = 64  # of objects and lists within each other
ROLES = ("system", "user", "assistant", "tool")
CHOICES = ("auto", "none", "required", "function")
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


@dataclass(frozen=True)
class CheckedConversation:
    """A conversation that the model is to answer.

    Attributes:
        messages: for the chat template, up to the one that is answered; arguments of tool calls are objects.
        begun: the beginning of the answer, which the model continues: the text of a last message of the
            assistant.
        tools: JSON objects of the tools to show; required: those of which one must be called, if any.
        single: whether the answer may call one tool only.
        values: further values for the chat template.
    """

    messages: list[dict[str, Any]]
    begun: str
    tools: list[dict[str, Any]]
    required: list[dict[str, Any]]
    single: bool
    values: dict[str, Any]

    @property
    def has_system(self) -> bool:
        return any(message["role"] == "system" for message in self.messages)

    @property
    def has_calls(self) -> bool:
        return any("tool_calls" in message or message["role"] == "tool" for message in self.messages)


def checked_conversation(conversation: pb.Conversation, limits: AgentLimits) -> CheckedConversation:
    """Check a conversation.

    Raises:
        BadRequestError: when a message, a tool or the template's values make no sense.
        CapacityError: when the texts are longer than the limits.
    """
    messages: Sequence[pb.ChatMessage] = conversation.messages
    if len(messages) > MAX_MESSAGES:
        raise BadRequestError(
            f"the conversation has {len(messages)} messages; at most {MAX_MESSAGES} are taken"
        )
    if len(conversation.tools) > MAX_TOOLS:
        raise BadRequestError(f"there are {len(conversation.tools)} tools; at most {MAX_TOOLS} are taken")
    unknown = next((each.role for each in messages if each.role not in ROLES), None)
    if unknown is not None:
        raise BadRequestError(f"a message has the role {unknown!r}; it must be {', '.join(ROLES)}")
    begun = ""
    if len(messages) > 1 and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        messages, begun = messages[:-1], messages[-1].content
    if not messages or messages[-1].role == "assistant":
        raise BadRequestError(
            "the conversation ends neither with a message of the user or of a tool, nor with one of the "
            "assistant behind it, whose text the answer continues"
        )
    limits.check_prompt_text("".join(_texts(conversation)))
    tools = _tools(conversation.tools)
    return CheckedConversation(
        messages=_template_messages(messages),
        begun=begun,
        tools=[] if conversation.tool_choice == "none" else tools,
        required=_required(conversation, tools),
        single=conversation.single_tool_call or conversation.tool_choice == "function",
        values=_template_values(conversation.template_values),
    )


def _texts(conversation: pb.Conversation) -> Iterator[str]:
    """Yield all texts of a conversation that may become a part of the prompt."""
    yield from conversation.tools
    yield conversation.template_values
    for message in conversation.messages:
        yield from (message.content, message.reasoning, message.tool_call_id, message.name)
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)


def _template_messages(messages: Sequence[pb.ChatMessage]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of the tools that were called, by the id of the call
    for message in messages:
        if message.role != "assistant" and (message.reasoning or message.tool_calls):
            raise BadRequestError(
                f"a message of the role {message.role!r} has reasoning or tool calls; only assistants' may"
            )
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            entry |= {"reasoning_content": message.reasoning, "reasoning": message.reasoning}
        if message.tool_calls:
            entry["tool_calls"] = [_call(call) for call in message.tool_calls]
            names.update((call.id, call.name) for call in message.tool_calls)
        if message.role == "tool":
            entry["tool_call_id"] = message.tool_call_id
            entry["name"] = message.name or names.get(message.tool_call_id, "")
        elif message.name:
            entry["name"] = message.name
        found.append(entry)
    return found


def _call(call: pb.ToolCall) -> dict[str, Any]:
    _check_name(call.name)
    arguments = _object(call.arguments or "{}", f"the arguments of a call of {call.name}")
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tools(texts: Sequence[str]) -> list[dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {}
    for text in texts:
        tool = _tool(text)
        name = tool["function"]["name"]
        if name in tools:
            raise BadRequestError(f"two tools are named {name}; give each a name of its own")
        tools[name] = tool
    return list(tools.values())


def _tool(text: str) -> dict[str, Any]:
    tool = _object(text, "a tool")
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise BadRequestError(f'a tool is {text:.80}; it must be {{"type": "function", "function": {{...}}}}')
    _check_name(function.get("name"))
    parameters = function.get("parameters")
    if parameters is not None and not _is_schema(parameters):
        raise BadRequestError(f"the parameters of the tool {function['name']} are no JSON schema")
    return tool


def _is_schema(parameters: Any) -> bool:
    if not isinstance(parameters, dict):
        return False
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    return isinstance(properties, dict) and isinstance(required, list)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequestError(
            f"a tool's name is {str(name)[:80]!r}; it must have 1 to 64 letters, digits, dots, dashes or "
            "underscores"
        )


def _required(conversation: pb.Conversation, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of which the answer must call one."""
    choice = conversation.tool_choice or CHOICES[0]
    if choice not in CHOICES:
        raise BadRequestError(f"tool_choice is {choice!r}; it must be {', '.join(CHOICES)}")
    if choice == "required" and not tools:
        raise BadRequestError('tool_choice is "required", and there are no tools')
    if choice == "function":
        named = [tool for tool in tools if tool["function"]["name"] == conversation.tool_name]
        if not named:
            raise BadRequestError(
                f"tool_choice names {conversation.tool_name!r}, which is not one of the tools"
            )
        return named
    return tools if choice == "required" else []


def _template_values(text: str) -> dict[str, Any]:
    values = _object(text, "template_values") if text else {}
    reserved = _RESERVED & values.keys()
    if reserved:
        raise BadRequestError(f"template_values has {min(reserved)!r}, which comes from the request itself")
    return values


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"{name}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadRequestError(f"{name}: {text:.80} is no JSON object")
    if is_nested_deeper(content, MAX_DEPTH):
        raise BadRequestError(
            f"{name}: objects and lists are nested deeper than {MAX_DEPTH}; make it flatter"
        )
    return content
