"""Forms of answers that no grammar can be made of: the error names the request's own parameter."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.core.errors import GrammarError
from flowedge.gateway.answers.request_words import RequestWords
from tests.gateway.application import GatewayHere

HELLO = [{"role": "user", "content": "Add two numbers."}]
SCHEMAS: dict[str, dict[str, Any]] = {
    "unknown type": {"type": "colour"},
    "nothing": {"not": {}},
    "pattern": {"type": "string", "pattern": "(a"},
    "pattern of a property": {"type": "object", "properties": {"a": {"type": "string", "pattern": "[z-a]"}}},
}


def refused(gateway: GatewayHere, path: str, body: dict[str, Any]) -> Any:
    with gateway.client() as client:
        answer = client.post(path, json={"model": "bundled", "stream": False, **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def check(error: dict[str, Any], param: str) -> None:
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(f"{param} cannot be ")
    assert "grammar (" not in error["message"]


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))
def test_chat_completions(served: GatewayHere, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        body = {"messages": HELLO, "response_format": form, "stream": stream}
        check(refused(served, "/v1/chat/completions", body), "response_format")


def test_the_other_dialects(served: GatewayHere) -> None:
    schema = SCHEMAS["pattern"]
    form = {"type": "json_schema", "name": "x", "schema": schema}
    check(refused(served, "/v1/responses", {"input": "Hi", "text": {"format": form}}), "text.format")
    for path, prompt in (("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "Hi"})):
        assert refused(served, path, {**prompt, "format": schema}).startswith("format cannot be ")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grammar (regex) cannot be used: unclosed group", "format cannot be used: unclosed group"),
        ("grammars cannot be used with this model", "format: grammars cannot be used with this model"),
    ],
)
def test_any_error_of_a_grammar_names_the_parameter(text: str, shown: str) -> None:
    error = RequestWords("num_predict", "prompt", "format").said_of(GrammarError(text), None)
    assert (error.status, error.param, error.message) == (400, "format", shown)


def test_tools_that_must_be_called(served: GatewayHere) -> None:
    parameters = SCHEMAS["pattern of a property"]
    tool = {"type": "function", "function": {"name": "paint", "parameters": parameters}}
    body = {"messages": HELLO, "tools": [tool], "tool_choice": "required"}
    check(refused(served, "/v1/chat/completions", body), "tools")
