"""Errors name what the client has sent, and speak of the context as clients expect."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.core.errors import BadRequestError, CapacityError, ContextLengthError
from flowedge.gateway.answers.request_words import RequestWords
from tests.gateway.application import GatewayHere

WORDS = RequestWords("max_completion_tokens", "messages")
HELLO = [{"role": "user", "content": "Hello"}]
LONG = "long " * 3000  # more tokens than the bundled model takes
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOO_LONG: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, {"messages": HELLO, "max_tokens": 9999}, "messages", "max_tokens"),
    (CHAT, {"messages": HELLO, "max_completion_tokens": 9999}, "messages", "max_completion_tokens"),
    (CHAT, {"messages": [{"role": "user", "content": LONG}], "stream": True}, "messages", "shorten"),
    (COMPLETIONS, {"prompt": LONG}, "prompt", "shorten"),
    (COMPLETIONS, {"prompt": [5] * 2000, "max_tokens": 100}, "prompt", "max_tokens"),
    (RESPONSES, {"input": "a", "max_output_tokens": 9999}, "input", "max_output_tokens"),
]
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": [5, 1 << 20]}, "prompt"),
    (COMPLETIONS, {"prompt": [5, 1 << 40]}, "prompt"),
    (CHAT, {"messages": HELLO, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
    (CHAT, {"messages": HELLO, "logit_bias": {"9000": 1}}, "logit_bias"),
    (CHAT, {"messages": HELLO, "tools": [TOOL, {**TOOL, "function": {"name": "a:b"}}]}, "tools"),
]


def post(gateway: GatewayHere, path: str, body: dict[str, Any]) -> Any:
    with gateway.client() as client:
        answer = client.post(path, json={"model": "bundled", **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize(("path", "body", "param", "named"), TOO_LONG)
def test_what_is_longer_than_the_context(
    served: GatewayHere, path: str, body: dict[str, Any], param: str, named: str
) -> None:
    error = post(served, path, body)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["message"].startswith("This model's maximum context length is 2048 tokens. ")
    assert named in error["message"]
    assert "max_new_tokens" not in error["message"]


def test_what_is_longer_than_the_context_in_ollamas_words(served: GatewayHere) -> None:
    error = post(served, "/api/generate", {"prompt": "a", "options": {"num_predict": 9999}})
    assert error.startswith("This model's maximum context length is 2048 tokens. ")
    assert "num_predict" in error


@pytest.mark.parametrize(("path", "body", "param"), WRONG)
def test_what_is_wrong_is_named(served: GatewayHere, path: str, body: dict[str, Any], param: str) -> None:
    error = post(served, path, {**body, "max_tokens": 2})
    assert error["param"] == param
    for internal in ("prompt_ids", "template_values"):
        assert internal not in error["message"]


def test_an_error_that_is_not_about_the_length_does_not_say_so() -> None:
    error = WORDS.said_of(CapacityError("the memory of cpu ran out; ask for a shorter context"), 2048)
    assert (error.code, error.message.startswith("the memory")) == ("capacity", True)
    error = WORDS.said_of(ContextLengthError("lower max_new_tokens"), None)
    assert error.message == "This model's maximum context length is exceeded. lower max_completion_tokens"
    assert WORDS.said_of(BadRequestError("nothing that is known"), 2048).param is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/api/embeddings"])
def test_embeddings_are_said_not_to_be_served(served: GatewayHere, path: str) -> None:
    with served.client() as client:
        answer = client.post(path, json={"model": "bundled", "input": "a"})
    assert answer.status_code == 501
    assert "embeddings are not served" in answer.text


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/chat/completions", "the endpoint is /v1/chat/completions: end the client's base URL with /v1"),
        ("/models", "the endpoint is /v1/models"),
        ("/v1/v1/responses", "the endpoint is /v1/responses"),
        ("/v1/api/chat", "docs/openai-api.md"),
        ("/v1/chat", "the endpoint is /api/chat: leave /v1 out of the base URL"),
        ("/nothing", "docs/openai-api.md lists what is served"),
    ],
)
def test_a_wrong_base_url_gets_a_hint(served: GatewayHere, path: str, hint: str) -> None:
    with served.client() as client:
        answer = client.post(path, json={})
    assert answer.status_code == 404
    assert hint in answer.json()["error"]["message"]
