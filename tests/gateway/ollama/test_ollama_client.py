"""Ollama's own client: models, chat and generate, plain and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ollama import Client, ResponseError
from openai import AuthenticationError, OpenAI, RateLimitError

from flowedge.gateway.access.keys import KeyFile, KeyLimits
from tests.gateway.application import GatewayHere, gateway_here

HELLO = [{"role": "user", "content": "Add two numbers."}]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@pytest.fixture
def ollama(served: GatewayHere) -> Iterator[Client]:
    with Client(served.url, transport=served.transport) as client:
        yield client


def test_models(ollama: Client, served: GatewayHere) -> None:
    assert [model.model for model in ollama.list().models] == ["bundled"]
    assert [model.name for model in ollama.ps().models] == ["bundled"]
    shown = ollama.show("bundled")
    assert shown.capabilities == ["completion", "tools"]
    (listed,) = ollama.list().models
    assert listed.details is not None
    assert listed.details.family == "llama"
    assert (shown.modelinfo or {})["llama.context_length"] == 2048
    with served.client() as client:
        assert client.get("/api/version").json()["version"]
        assert client.head("/").status_code == 200


def test_a_chat_is_the_same_streamed(ollama: Client) -> None:
    options = {"num_predict": 8, "seed": 5, "num_ctx": 1024}
    whole = ollama.chat("bundled", HELLO, options=options, keep_alive="5m")
    *parts, last = ollama.chat("bundled:latest", HELLO, options=options, stream=True)
    assert whole.message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert not any(part.done for part in parts)
    for answer in (whole, last):
        assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 8)
        assert answer.total_duration is not None
        assert answer.eval_duration is not None
        assert answer.total_duration > answer.eval_duration > 0


def test_generate(ollama: Client) -> None:
    options = {"num_predict": 6, "temperature": 0}
    whole = ollama.generate("bundled", "Add two numbers.", options=options)
    parts = ollama.generate("bundled", "Add two numbers.", options=options, stream=True)
    assert "".join(part.response or "" for part in parts) == whole.response
    assert whole.response == ollama.chat("bundled", HELLO, options=options).message.content
    raw = ollama.generate("bundled", "def add(", raw=True, options={**options, "stop": ["\n"]})
    assert "\n" not in (raw.response or "")
    assert ollama.generate("bundled").done_reason == "load"


def test_formats(ollama: Client) -> None:
    answer = ollama.chat("bundled", HELLO, format=SCHEMA, options={"num_predict": 60})
    assert json.loads(answer.message.content or "")["colour"] in ("red", "green", "blue")


def test_tools_and_their_answers_are_taken(ollama: Client) -> None:
    def paint(colour: str) -> str:
        """Paint it.

        Args:
            colour: which.
        """
        return colour

    messages: list[dict[str, Any]] = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "paint", "arguments": {"colour": "red"}}}],
        },
        {"role": "tool", "tool_name": "paint", "content": "It is done."},
    ]
    answer = ollama.chat("bundled", messages, tools=[paint], options={"num_predict": 8, "temperature": 0})
    assert answer.eval_count == 8


def test_errors_have_ollamas_shape(ollama: Client, served: GatewayHere) -> None:
    with pytest.raises(ResponseError, match="there is no model 'llama3' here") as unknown:
        ollama.chat("llama3", HELLO)
    assert unknown.value.status_code == 404
    with pytest.raises(ResponseError, match=r"options\.mirostat is not supported") as refused:
        ollama.chat("bundled", HELLO, options={"mirostat": 1}, stream=False)
    assert refused.value.status_code == 400
    with pytest.raises(ResponseError, match="maximum context length is 2048 tokens"):
        list(ollama.chat("bundled", HELLO, options={"num_predict": 5000}, stream=True))
    with served.client() as client:
        answer = client.post("/api/chat", content='{"model": "bundled", "messages": 5}')
        unknown = client.post("/api/pull", json={"model": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("messages is 5")
    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("there is no /api/")


def test_keys_and_their_limits(cluster4: str, tmp_path: Path) -> None:
    def official(key: str) -> OpenAI:
        return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=gateway.client())

    asked: Any = {"model": "bundled", "messages": HELLO}
    file = KeyFile(tmp_path / "keys.json")
    key = file.add("anna", "normal", KeyLimits(requests_per_minute=2))
    with gateway_here(cluster4, {"access": {"keys_file": file.path}}) as gateway:
        url, transport = gateway.url, gateway.transport
        with pytest.raises(ResponseError, match="API key") as refused:
            Client(url, transport=transport).chat(**asked)
        assert refused.value.status_code == 401
        with official("wrong") as client, pytest.raises(AuthenticationError, match="API key"):
            client.chat.completions.create(**asked)
        ollama = Client(url, transport=transport, headers={"authorization": f"Bearer {key}"})
        assert ollama.chat(**asked, options={"num_predict": 2}).eval_count == 2
        with official(key) as client:
            client.chat.completions.create(**asked, max_tokens=2)
            with pytest.raises(RateLimitError) as limited:
                client.chat.completions.create(**asked, max_tokens=2)
        assert limited.value.code == "rate_limit_exceeded"
        assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60
        with pytest.raises(ResponseError, match="2 requests a minute"):
            ollama.chat(**asked)
