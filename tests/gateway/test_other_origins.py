"""Pages of other sites, some of which may use the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.application import GatewayHere, gateway_here
from tests.gateway.asking import COMPLETIONS, body

ALLOWED, OTHER = "https://chat.example", "https://evil.example"
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def gateway(cluster4: str) -> Iterator[GatewayHere]:
    with gateway_here(cluster4, {"http": {"cors_origins": [ALLOWED]}}) as started:
        yield started


def preflight(origin: str, headers: str = "authorization,content-type") -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }


def test_a_preflight_is_answered_for_the_origin_that_is_named(gateway: GatewayHere) -> None:
    with gateway.client() as client:
        answer = client.options(COMPLETIONS, headers=preflight(ALLOWED))
        refused = client.options(COMPLETIONS, headers=preflight(OTHER))
    assert answer.status_code == 200
    assert answer.headers[ALLOW] == ALLOWED
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed and "content-type" in allowed
    assert refused.status_code == 400
    assert ALLOW not in refused.headers


def test_its_pages_can_ask_and_read_answers_and_errors(gateway: GatewayHere) -> None:
    with gateway.client(headers={"origin": ALLOWED}) as client:
        whole = client.post(COMPLETIONS, json=body(2))
        stream = client.post(COMPLETIONS, json=body(2, stream=True))
        wrong = client.post(COMPLETIONS, json=body(2, model="gpt"))
    assert [each.status_code for each in (whole, stream, wrong)] == [200, 200, 404]
    for answer in (whole, stream, wrong):
        assert answer.headers[ALLOW] == ALLOWED
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["vscode-webview://1abc-2d", "app://obsidian.md"])
def test_views_of_programs_of_this_machine_may_use_it(served: GatewayHere, origin: str) -> None:
    with served.client(headers={"origin": origin}) as client:
        assert client.options(COMPLETIONS, headers=preflight(origin)).headers[ALLOW] == origin
        answer = client.post(COMPLETIONS, json=body(2))
    assert (answer.status_code, answer.headers[ALLOW]) == (200, origin)


def test_beyond_loopback_they_may_not(cluster4: str) -> None:
    settings = {"http": {"listen": "0.0.0.0:0"}, "access": {"keys": "off"}}
    with gateway_here(cluster4, settings) as far, far.client(headers={"origin": "app://x"}) as client:
        assert client.post(COMPLETIONS, json=body(2)).status_code == 403


def test_pages_of_others_can_neither_ask_nor_read(gateway: GatewayHere) -> None:
    with gateway.client(headers={"origin": OTHER}) as client:
        asked = client.post(COMPLETIONS, json=body(2))
        read = client.get("/v1/models")
    assert asked.status_code == 403
    assert asked.json()["error"]["code"] == "origin_not_allowed"
    assert ALLOW not in asked.headers
    assert ALLOW not in read.headers
