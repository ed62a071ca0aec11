"""Clients that send half of a request, too much of it, or something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.gateway.http_sockets import connected, exchange, head, parsed, read_all
from tests.support.gateways import GatewayProcess, gateway_before

NOWHERE = "127.0.0.1:9"  # a pipeline that is always gone
SETTINGS = {
    "deadlines": {"headers_s": 0.5, "body_s": 0.5, "idle_s": 1},
    "limits": {"body_bytes": 4096, "header_bytes": 4096, "headers": 20, "connections": 40},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with short limits, whose pipeline is gone."""
    file = tmp_path_factory.mktemp("pipelines") / "pipelines.toml"
    file.write_text(f'[[pipelines]]\nname = "gone"\ndraft_node = "{NOWHERE}"\n')
    with gateway_before(options=["--pipelines", str(file)], settings=SETTINGS) as started:
        yield started


CHAT = "/v1/chat/completions"
CHUNKED = head("POST", CHAT, "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        pytest.param([b"POST /v1/chat/comp"], None, id="half a request line"),
        pytest.param([b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-"], None, id="endless headers"),
        pytest.param(
            [head("POST", CHAT, "Content-Length: 100"), b'{"model"'], "request_timeout", id="half a body"
        ),
        pytest.param([CHUNKED, b"5\r\n{}"], "request_timeout", id="half a chunked body"),
    ],
)
def test_half_a_request_is_cut_off(gateway: GatewayProcess, pieces: list[bytes], code: str | None) -> None:
    answer = exchange(gateway.host, *pieces)
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    error = json.loads(answer.rest)["error"]
    assert error["code"] == code
    assert "within 0.5 s" in error["message"]


def test_a_body_that_is_announced_too_large_is_not_read(gateway: GatewayProcess) -> None:
    answer = exchange(gateway.host, head("POST", CHAT, "Content-Length: 100000000"))
    assert (answer.status, answer.headers["connection"]) == (413, "close")


def test_a_chunked_body_that_grows_too_large_is_refused(gateway: GatewayProcess) -> None:
    answer = exchange(gateway.host, CHUNKED, b"1001\r\n" + b" " * 0x1001 + b"\r\n0\r\n\r\n")
    assert answer.status == 413
    assert "4096 bytes" in json.loads(answer.rest)["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([f"X-Header-{number}: 1" for number in range(30)], id="many"),
        pytest.param(["X-Header: " + "a" * 5000], id="long"),
    ],
)
def test_too_many_headers_are_refused(gateway: GatewayProcess, headers: list[str]) -> None:
    answer = exchange(gateway.host, head("GET", "/v1/models", *headers))
    assert (answer.status, answer.headers["connection"]) == (431, "close")


def test_a_header_without_an_end_is_refused_before_its_time_is_over(gateway: GatewayProcess) -> None:
    with connected(gateway.host) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Header: " + b"a" * 8000)
        assert parsed(read_all(connection)).status == 431


def test_a_long_path_is_refused(gateway: GatewayProcess) -> None:
    assert exchange(gateway.host, head("GET", "/v1/models?" + "a" * 5000)).status == 431


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"\x00" * 100])
def test_garbage_is_refused(gateway: GatewayProcess, garbage: bytes) -> None:
    answer = exchange(gateway.host, garbage)
    assert answer.status == 400
    assert json.loads(answer.rest)["error"]["type"] == "invalid_request_error"


def test_two_lengths_are_refused(gateway: GatewayProcess) -> None:
    request = head("POST", "/v1/models", "Content-Length: 4", "Transfer-Encoding: chunked")
    assert exchange(gateway.host, request, b"0\r\n\r\n").status == 400


def test_pipelined_requests_are_answered_in_order(gateway: GatewayProcess) -> None:
    last = head("GET", "/v1/models", "Connection: close", "X-Request-Id: third")
    requests = [head("GET", "/health/live", f"X-Request-Id: {name}") for name in ("first", "second")]
    with connected(gateway.host) as connection:
        connection.sendall(b"".join([*requests, last]))
        content = read_all(connection).decode()
    ids = [line.split(": ")[1] for line in content.split("\r\n") if line.startswith("x-request-id")]
    assert ids == ["first", "second", "third"]


def test_an_idle_connection_is_closed(gateway: GatewayProcess) -> None:
    with connected(gateway.host) as connection:
        assert read_all(connection) == b""
    with connected(gateway.host) as connection:
        connection.sendall(head("GET", "/health/live"))
        assert parsed(read_all(connection)).status == 200


def test_connections_beyond_the_limit_are_told_so(gateway: GatewayProcess) -> None:
    with ExitStack() as held:
        opened = [held.enter_context(connected(gateway.host)) for _ in range(45)]
        contents = [read_all(connection) for connection in opened[40:]]
    answers = [parsed(content) for content in contents if content]
    assert answers and {answer.status for answer in answers} == {503}
    assert answers[0].headers["retry-after"] == "1"
    with gateway.client() as client:  # and then the gateway takes connections again
        assert client.get("/health/live").status_code == 200


def test_readiness_names_what_is_gone(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        ready = client.get("/health/ready")
        models = client.get("/v1/models").json()["data"]
    assert ready.status_code == 503
    assert NOWHERE in ready.json()["reason"]
    assert [(model["id"], model["flowedge"]["ready"]) for model in models] == [("gone", [])]
