"""Streams that clients leave, do not read, or that have nothing to send."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from flowedge.client import Client
from tests.gateway.asking import COMPLETIONS, await_sessions, body, raw_request
from tests.gateway.http_sockets import connected, parsed, read_all
from tests.support.gateways import GatewayProcess, gateway_before
from tests.support.processes import agents, become_pipeline

LONG = 1900  # tokens: longer than a test takes


@pytest.fixture
def names() -> list[str]:
    return [f"comments-{uuid.uuid4().hex[:6]}-{role}" for role in ("d0", "v1")]


@pytest.fixture(scope="module")
def quick(cluster4: str) -> Iterator[GatewayProcess]:
    """A gateway with short limits."""
    settings = {"deadlines": {"comment_s": 0.1, "write_s": 0.5}}
    with gateway_before(cluster4, settings=settings) as gateway:
        yield gateway


def test_a_stream_that_is_left_frees_the_caches(quick: GatewayProcess, cluster4: str) -> None:
    with connected(quick.host) as connection:
        connection.sendall(raw_request(LONG, "X-Request-Id: left", stream=True))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        await_sessions(cluster4, 1)
    await_sessions(cluster4, 0)
    quick.line("request=left", "reason=client_gone")


def test_a_request_without_a_stream_that_is_left_frees_the_caches(
    quick: GatewayProcess, cluster4: str
) -> None:
    with connected(quick.host) as connection:
        connection.sendall(raw_request(LONG, "X-Request-Id: gone"))
        await_sessions(cluster4, 1)
    await_sessions(cluster4, 0)
    quick.line("request=gone", "reason=client_gone", "status=499")


def test_a_client_that_stops_reading_is_cut_off(quick: GatewayProcess, cluster4: str) -> None:
    with connected(quick.host, receive_buffer=4096) as connection:
        connection.sendall(raw_request(LONG, "X-Request-Id: deaf", stream=True))
        await_sessions(cluster4, 1)
        quick.line("request=deaf", "reason=client_gone")
        await_sessions(cluster4, 0)


def test_an_answer_without_news_carries_comments(names: list[str]) -> None:
    settings = {"limits": {"sessions": 1}}
    with agents(names, settings=settings) as (draft_node, stage):
        become_pipeline([draft_node, stage])
        address = draft_node.address
        with (
            gateway_before(address, settings={"deadlines": {"comment_s": 0.1}}) as gateway,
            Client(address) as client,
            connected(gateway.host) as connection,
            client.generate("a", max_new_tokens=LONG, ignore_eos=True) as other,
        ):
            next(other)
            connection.sendall(raw_request(2, "Connection: close", stream=True))
            content = b""
            while content.count(b": waiting\n\n") < 3:
                content += connection.recv(4096)
            other.close()
            answer = parsed(content + read_all(connection))
    assert answer.status == 200
    assert b"data: [DONE]" in answer.rest


def test_lines_without_news_are_json_with_blanks(cluster4: str) -> None:
    asked: dict[str, Any] = {"model": "bundled", "messages": [{"role": "user", "content": "Hello"}]}
    options = {"num_predict": 24, "temperature": 0}
    with gateway_before(cluster4, settings={"deadlines": {"comment_s": 0.001}}) as gateway:
        with gateway.client() as client:
            text = client.post("/api/chat", json={**asked, "options": options}).text
        official = ollama.Client(gateway.url)
        parts = [part.message.content or "" for part in official.chat(**asked, options=options, stream=True)]
    assert [line for line in text.splitlines() if line.startswith(" ")], "blanks stand before values"
    lines = [json.loads(line) for line in text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "".join(parts)
    assert lines[-1]["done"]


def test_a_complete_stream_is_no_client_that_went_away(gateway4: GatewayProcess) -> None:
    with gateway4.client(headers={"x-request-id": "whole"}) as client:
        answer = client.post(COMPLETIONS, json=body(4, stream=True))
    *_, last, _ = answer.text.split("\n\n")
    assert last == "data: [DONE]"
    gateway4.line("request=whole", "reason=ok", "new_tokens=4", "model=bundled")
