"""A tool call that the limit of tokens cuts off is no text; before a whole one comes no empty text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.application import GatewayHere

PARAMETERS = {"type": "object", "properties": {"room": {"enum": ["cellar", "garden"]}}, "required": ["room"]}
FUNCTION = {"name": "light", "parameters": PARAMETERS}
CHAT = {
    "messages": [{"role": "user", "content": "Light!"}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "required",
}
RESPONSE = {"input": "Light!", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}


def events(gateway: GatewayHere, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with gateway.client() as client:
        lines = client.post(path, json={"model": "bundled", "stream": True, **body}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("tokens", [1, 4, 9, 16])
def test_a_call_that_is_cut_off_is_no_text(served: GatewayHere, tokens: int) -> None:
    with served.client() as client:
        body = {"model": "bundled", **CHAT, "max_tokens": tokens}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
        assert "tool_calls" not in choice["message"]
        answer = client.post(
            "/v1/responses", json={"model": "bundled", **RESPONSE, "max_output_tokens": tokens}
        ).json()
        assert answer["status"] == "incomplete"
        assert [part["text"] for item in answer["output"] for part in item["content"]] == [""]
    chunks = events(served, "/v1/chat/completions", {**CHAT, "max_tokens": tokens})
    assert all(not chunk["choices"][0]["delta"].get("content") for chunk in chunks)
    parts = events(served, "/v1/responses", {**RESPONSE, "max_output_tokens": tokens})
    assert not [part for part in parts if part["type"].endswith(".delta")]


def test_an_answer_that_begins_with_a_call_has_no_empty_text(served: GatewayHere) -> None:
    choice = {"type": "function", "function": {"name": "light"}}
    chunks = events(served, "/v1/chat/completions", {**CHAT, "max_tokens": 200, "tool_choice": choice})
    first, second = (chunk["choices"][0]["delta"] for chunk in chunks[:2])
    assert first == {"role": "assistant", "content": None}
    assert second["tool_calls"][0]["function"]["name"] == "light"
    assert "content" not in second
    text = events(served, "/v1/chat/completions", {"messages": CHAT["messages"], "max_tokens": 3})
    assert text[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
