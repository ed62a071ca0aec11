"""Conversations that other servers take: with system messages, begun answers, results of unknown calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.application import GatewayHere

SYSTEM = "x-flowedge-system"
DEFINE = {"role": "user", "content": "Write a function that adds two numbers."}
BRIEF = {"role": "system", "content": "Be brief."}
CHAT, OLLAMA = "/v1/chat/completions", "/api/chat"


def asked(gateway: GatewayHere, path: str, messages: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Return the answer, and the header about system messages."""
    options = {"options": {"num_predict": 8, "temperature": 0}} if path == OLLAMA else {"max_tokens": 8}
    with gateway.client() as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "messages": messages, "temperature": 0, "stream": False, **options}
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json() if path == OLLAMA else answer.json()["choices"][0]
    return found["message"]["content"], answer.headers.get(SYSTEM)


@pytest.mark.parametrize("path", [CHAT, OLLAMA])
def test_a_system_message_stands_where_the_template_has_it(served: GatewayHere, path: str) -> None:
    """The header speaks of templates that have no place for it."""
    assert asked(served, path, [BRIEF, DEFINE])[1] is None


@pytest.mark.parametrize("path", [CHAT, OLLAMA])
def test_an_answer_that_is_begun_goes_on(served: GatewayHere, path: str) -> None:
    whole, _ = asked(served, path, [DEFINE])
    begun = whole[: len(whole) // 2]
    rest, _ = asked(served, path, [DEFINE, {"role": "assistant", "content": begun}])
    assert not rest.startswith(begun)
    assert (begun + rest).startswith(whole) or whole.startswith(begun + rest)


@pytest.mark.parametrize("path", [CHAT, OLLAMA])
def test_a_result_of_a_call_that_nobody_has_told_of(served: GatewayHere, path: str) -> None:
    result = {"role": "tool", "content": "22 degrees", "tool_call_id": "c1"}
    assert asked(served, path, [DEFINE, result])


def test_programs_that_look_for_ollama_find_it(served: GatewayHere) -> None:
    with served.client() as client:
        for accept in ("*/*", "application/json"):
            assert client.get("/", headers={"accept": accept}).text == "Ollama is running"
        browser = client.get("/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert browser.headers["content-type"].startswith("text/html")
