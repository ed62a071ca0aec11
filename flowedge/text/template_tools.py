"""Tools in front of models: by a chat template that knows tools, or described in the text of the messages."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.text.known_syntaxes import thinks, tool_call_format
from flowedge.text.template_renderer import RENDERER
from flowedge.text.tokenizer import chat_template, directory_of

_NAME = "probe_of_tools"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "What."}}},
    },
}
# The form of the Hermes models, which many models were trained with.
_DESCRIPTION = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

"""


@functools.lru_cache(maxsize=8)
def knows_tools(template: str, place: str) -> bool:
    """Return whether a chat template describes the tools that it is given.

    Args:
        template: "" for a model without a chat template.
        place: the directory of the tokenizer, to name in errors.

    Raises:
        CheckpointError: when the template is no program, or exceeds a limit.
    """
    if not template:
        return False
    messages = [{"role": "user", "content": "Hi"}]
    try:
        text = RENDERER.render(template, place, messages, {}, add_generation_prompt=True, tools=[_TOOL])
    except BadRequestError:
        return False
    return _NAME in text


def capabilities_of(tokenizer: Any) -> tuple[str, ...]:
    """Return what a model is made for beside texts, by its chat template: "tools", "thinking".

    Raises:
        CheckpointError: when the template is no program, or exceeds a limit.
    """
    template, place = chat_template(tokenizer), directory_of(tokenizer)
    tools = ["tools"] if calls_by_itself(tokenizer, template, place) else []
    return (*tools, "thinking") if thinks(template) else tuple(tools)


def calls_by_itself(tokenizer: Any, template: str, place: str) -> bool:
    """Return whether a chat template describes tools, and answers with calls in a form that can be read."""
    readable = tool_call_format(template) is not None or bool(getattr(tokenizer, "response_template", None))
    return readable and knows_tools(template, place)


def described_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a conversation in which tools, calls and results are text, for a template that knows no tools.

    The tools are described in front of the user's first message. Results of tools are messages of the user.

    Args:
        messages: in the form that chat templates take.
        tools: may be empty; calls and results are text nevertheless.
    """
    found: list[dict[str, Any]] = []
    description = _description(tools)
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
            if found and found[-1].get("results"):
                found[-1]["content"] += f"\n{content}"
                continue
            found.append({"role": "user", "content": content, "results": True})
        elif message["role"] == "user":
            found.append({"role": "user", "content": description + content})
            description = ""
        else:
            calls = [_call_text(call) for call in message.get("tool_calls", ())]
            text = "\n".join([content, *calls] if content else calls)
            found.append({"role": message["role"], "content": text if calls else content})
    return [{"role": message["role"], "content": message["content"]} for message in found]


def _description(tools: Sequence[Mapping[str, Any]]) -> str:
    if not tools:
        return ""
    return _DESCRIPTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    content = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(content, ensure_ascii=False)}\n</tool_call>"
