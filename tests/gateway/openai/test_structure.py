"""What an answer must be, by the names of vLLM, SGLang and OpenAI."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.gateway.application import GatewayHere

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["a"],
}
GBNF = 'root ::= "no" | "yes" digit\ndigit ::= [0-9]'
LARK = 'start: "no" | "yes" /[0-9]/'
JSON, TWO, ONE_OF, ENDING = r'\{"a": \d\}', r"\d{2}", "red|green", r"no|yes\d"
GIVEN: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"regex": TWO}}, TWO),
    ({"structured_outputs": {"choice": ["red", "green"]}}, ONE_OF),
    ({"structured_outputs": {"grammar": LARK}}, ENDING),
    ({"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "guidance"}, JSON),
    ({"guided_regex": TWO}, TWO),
    ({"guided_choice": ["red", "green"]}, ONE_OF),
    ({"guided_grammar": GBNF}, ENDING),
    ({"regex": TWO}, TWO),
    ({"ebnf": GBNF}, ENDING),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, JSON),
]
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Say."}]},
    "/v1/completions": {"prompt": "Say"},
}


def post(gateway: GatewayHere, path: str, given: dict[str, Any]) -> Any:
    with gateway.client() as client:
        return client.post(path, json={"model": "bundled", "max_tokens": 30, **PROMPTS[path], **given})


@pytest.mark.parametrize(("given", "pattern"), GIVEN)
def test_each_name_holds(served: GatewayHere, given: dict[str, Any], pattern: str) -> None:
    for path in PROMPTS:
        (choice,) = post(served, path, given).json()["choices"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"structured_outputs": {"json": {"type": "colour"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"ebnf": "root ::= ("}, "ebnf"),
        ({"ebnf": ""}, "ebnf"),
        ({"regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_what_cannot_be_followed_is_named(served: GatewayHere, given: dict[str, Any], param: str) -> None:
    for path in PROMPTS:
        refused = post(served, path, given)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
