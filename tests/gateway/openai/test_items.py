"""Requests for responses in the client's terms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowedge.client import ChatMessage, Grammar, ToolCall
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.answers.body import read_body
from flowedge.gateway.answers.planned import ChatPrompt, PlannedAnswer
from flowedge.gateway.errors import ApiError
from flowedge.gateway.openai.responses import planned_answer
from flowedge.gateway.openai.responses_body import LOGPROBS, ResponseBody

TOOL = {"type": "function", "name": "open", "parameters": {"type": "object"}, "strict": True}


def _planned(**given: Any) -> PlannedAnswer:
    body = read_body(ResponseBody, json.dumps({"model": "m", "input": "Hi", **given}).encode())
    return planned_answer(body, ApiCaller())


def _prompt(**given: Any) -> ChatPrompt:
    prompt = _planned(**given).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def test_a_text_is_a_message_of_the_user() -> None:
    assert list(_prompt(instructions="Be brief.").messages) == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hi"),
    ]


def test_items_that_the_assistant_said_become_one_message() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"type": "message", "role": "user", "content": "open it"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I do.", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "open", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "shut", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "no"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "yes"},
        {"role": "assistant", "content": "It is open."},
        {"role": "assistant", "content": "Anything else?"},
        {"role": "user", "content": "no"},
    ]
    calls = (ToolCall("c1", "open", "{}"), ToolCall("c2", "shut", "{}"))
    assert list(_prompt(input=items).messages) == [
        ChatMessage("system", "Be kind."),
        ChatMessage("user", "open it"),
        ChatMessage("assistant", "I do.", "Hm.", calls),
        ChatMessage("tool", "no", tool_call_id="c2", name="shut"),
        ChatMessage("tool", "yes", tool_call_id="c1", name="open"),
        ChatMessage("assistant", "It is open."),
        ChatMessage("assistant", "Anything else?"),
        ChatMessage("user", "no"),
    ]


def test_parameters_become_the_clients_options() -> None:
    planned = _planned(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=5,
        seed=3,
        include=[LOGPROBS, "reasoning.encrypted_content"],
        top_logprobs=2,
        text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low", "summary": "auto"},
        store=False,
        truncation="disabled",
        background=False,
    )
    options = planned.options
    assert (options.temperature, options.top_p, options.max_new_tokens, options.seed) == (0.5, 0.9, 5, 3)
    assert (options.logprobs, options.grammar) == (2, Grammar.json_schema({"type": "object"}))
    assert isinstance(planned.prompt, ChatPrompt)
    assert planned.prompt.template_values["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ({"type": "function", "name": "open"}, "open"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open"}]}, "auto"),
    ],
)
def test_choices_of_tools(choice: Any, expected: str) -> None:
    use = _prompt(tools=[TOOL], tool_choice=choice).tool_use
    assert use.choice == expected
    assert use.tools == (
        {"type": "function", "function": {"name": "open", "parameters": {"type": "object"}}},
    )


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "run"}}, "tool_choice"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"include": ["web_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"n": 2}, "n"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        _planned(**given)
    assert (caught.value.status, caught.value.param) == (400, param)
