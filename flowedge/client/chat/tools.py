"""The tools that a conversation offers to the model, and the conversation's form on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowedge.client.chat.messages import ChatMessage
from flowedge.core.errors import BadRequestError, wrong_type
from flowedge.core.grammar import json_text
from flowedge.v1 import generation_pb2 as pb

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
