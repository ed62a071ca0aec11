"""Requests that a pipeline refuses: their sender gets the reason, and nobody else notices anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowedge.client import Client
from flowedge.core.errors import (
    AccessError,
    BadRequestError,
    DeviceError,
    DeviceLostError,
    PrefixLostError,
    ProtocolError,
)
from flowedge.gateway.config import PoolSettings
from flowedge.gateway.pipelines.member import PoolMember
from flowedge.gateway.pipelines.served import PipelineEntry
from tests.gateway.asking import COMPLETIONS, body, device_at
from tests.support.gateways import GatewayProcess

CHAT = "/v1/chat/completions"
LEFT_OUT = "is left out"


def nested_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def chat(content: str = "Hello", **rest: Any) -> dict[str, Any]:
    return {"model": "bundled", "messages": [{"role": "user", "content": content}], **rest}


def formed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("path", "request_body", "status", "code"),
    [
        pytest.param(CHAT, chat("a " * 450_000), 413, "request_too_large", id="a long message"),
        pytest.param(
            COMPLETIONS, body(1, prompt="a " * 450_000), 413, "request_too_large", id="a long prompt"
        ),
        pytest.param("/api/chat", chat("a " * 450_000), 413, None, id="a long message in Ollama's form"),
        pytest.param(CHAT, chat(response_format=formed(nested_schema(80))), 400, None, id="a deep schema"),
        pytest.param(
            CHAT, chat(response_format=formed(nested_schema(150))), 400, "invalid_json", id="a deeper one"
        ),
    ],
)
def test_a_refused_request_leaves_the_pipeline_to_others(
    gateway4: GatewayProcess, path: str, request_body: dict[str, Any], status: int, code: str | None
) -> None:
    before = len(gateway4.lines)
    with gateway4.client() as client:
        refused = client.post(path, json=request_body)
        answered = client.post(COMPLETIONS, json=body(2))
    assert refused.status_code == status, refused.text
    if path != "/api/chat":
        assert refused.json()["error"]["code"] == code
        assert refused.json()["error"]["type"] == "invalid_request_error"
    assert answered.status_code == 200, answered.text
    assert not [line for line in gateway4.lines[before:] if LEFT_OUT in line]


def test_a_draft_node_says_what_it_takes_and_refuses_more(cluster4: str) -> None:
    limit = device_at(cluster4).request_bytes
    assert limit > 500_000
    with Client(cluster4) as client, pytest.raises(BadRequestError, match=f"the maximum is {limit}"):
        list(client.generate("a" * (limit + 1)))


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (DeviceLostError("d0", "no sign of life"), False),
        (AccessError("the certificate is of another device"), False),
        (DeviceError("d0", "the call failed: Unexpected <class 'KeyError'>"), True),
        (ProtocolError("the request has fields that are not known here"), True),
        (PrefixLostError("the rows are gone"), True),
    ],
)
def test_only_a_device_that_is_gone_is_left_out_at_once(cluster4: str, error: Exception, stays: bool) -> None:
    async def ready_after_failing() -> bool:
        async with PoolMember(PipelineEntry(cluster4), PoolSettings()) as member:
            member.failed(error)
            return member.ready

    assert asyncio.run(ready_after_failing()) == stays
