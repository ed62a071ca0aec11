"""A format together with tools: the answer is a call, or follows the format, and both occur."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.application import GatewayHere

COLOURS = ["red", "blue"]
SCHEMA = {"type": "object", "properties": {"colour": {"enum": COLOURS}}, "required": ["colour"]}
FUNCTION = {"name": "paint", "description": "Paints.", "parameters": SCHEMA}
QUESTION = [{"role": "user", "content": "Paint it."}]
TOOLS = [{"type": "function", "function": FUNCTION}]
FORM = {"type": "json_schema", "json_schema": {"name": "wall", "schema": SCHEMA}}


def checked(text: str, arguments: list[str]) -> str:
    """Return which of the two an answer is."""
    assert bool(text) != bool(arguments)
    for each in [text] if text else arguments:
        assert json.loads(each)["colour"] in COLOURS
    return "text" if text else "call"


def test_chat_completions(served: GatewayHere) -> None:
    found = set()
    with served.client() as client:
        for token in ("32", "95"):  # "<", with which calls begin, and "{"
            body: dict[str, Any] = {"model": "bundled", "messages": QUESTION, "tools": TOOLS}
            body |= {"response_format": FORM, "parallel_tool_calls": False, "logit_bias": {token: 100}}
            body["max_tokens"] = 200
            (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
            message = choice["message"]
            calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
            found.add(checked(message["content"] or "", calls))
            assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert found == {"text", "call"}


def test_the_other_dialects(served: GatewayHere) -> None:
    response = {"input": "Paint.", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 200}
    response["text"] = {"format": {"type": "json_schema", "name": "wall", "schema": SCHEMA}}
    chat = {"messages": QUESTION, "tools": TOOLS, "format": SCHEMA, "stream": False}
    chat["options"] = {"num_predict": 200, "temperature": 0}
    with served.client() as client:
        items = client.post("/v1/responses", json={"model": "bundled", **response}).json()["output"]
        for item in items:
            text = "" if item["type"] == "function_call" else item["content"][0]["text"]
            checked(text, [item["arguments"]] if item["type"] == "function_call" else [])
        message = client.post("/api/chat", json={"model": "bundled", **chat}).json()["message"]
    calls = [json.dumps(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    checked(message["content"], calls)


def test_a_required_call_goes_before_the_format(served: GatewayHere) -> None:
    body = {"model": "bundled", "messages": QUESTION, "tools": TOOLS, "response_format": FORM}
    with served.client() as client:
        answer = client.post(
            "/v1/chat/completions", json={**body, "tool_choice": "required", "max_tokens": 400}
        )
    assert answer.json()["choices"][0]["message"]["tool_calls"]
