"""Clients that send half of a request, too much of it, or something else."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator

import pytest

from tests.gateway.http_sockets import connected, exchange, head, parsed, read_all
from tests.support.gateways import GatewayProcess, gateway_before

NOWHERE = "127.0.0.1:9"  # a pipeline that is always gone
SETTINGS = {
    "deadlines": {"headers_s": 0.5, "body_s": 0.5, "idle_s": 1},
    "limits": {"body_bytes": 4096, "header_bytes": 4096, "headers": 20},
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


def test_a_body_that_comes_after_its_refusal_does_not_take_the_answer_away(gateway: GatewayProcess) -> None:
    size = 8 << 20
    with connected(gateway.host) as connection:
        connection.sendall(head("POST", CHAT, f"Content-Length: {size}"))
        connection.sendall(b" " * size)
        answer = parsed(read_all(connection))
    assert answer.status == 413
    assert json.loads(answer.rest)["error"]["code"] == "request_too_large"


def test_a_chunk_without_a_length_is_refused(gateway: GatewayProcess) -> None:
    answer = exchange(gateway.host, CHUNKED, b"5\r\n{}   \r\nzz\r\n")
    assert (answer.status, answer.headers["connection"]) == (400, "close")


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param(["Host: evil.example"], id="two"),
        pytest.param(["Host: localhost"], id="the same twice"),
    ],
)
def test_two_hosts_are_refused(gateway: GatewayProcess, hosts: list[str]) -> None:
    assert exchange(gateway.host, head("GET", "/v1/models", *hosts)).status == 400


def test_a_url_of_another_host_is_refused(gateway: GatewayProcess) -> None:
    assert exchange(gateway.host, head("GET", "http://evil.example/v1/models")).status == 400
    closing = head("GET", "http://LOCALHOST/v1/models", "Connection: close")
    assert exchange(gateway.host, closing).status == 200


def test_a_tunnel_is_refused(gateway: GatewayProcess) -> None:
    assert exchange(gateway.host, head("CONNECT", "localhost:80")).status == 400


@pytest.mark.parametrize("whole", [True, False])
def test_an_offer_of_another_protocol_is_declined(gateway: GatewayProcess, whole: bool) -> None:
    """As Java's HttpClient and curl --http2 make it."""
    offer = (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk",
    )
    content = b'{"model": "none", "messages": [{"role": "user", "content": "hello"}]}'
    first = head("POST", CHAT, *offer, f"Content-Length: {len(content)}", "X-Request-Id: first") + content
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    last = head("POST", CHAT, "Connection: close, Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")
    request = first + last + chunked
    answers = exchange(
        gateway.host, *([request] if whole else [request[n : n + 50] for n in range(0, len(request), 50)])
    )
    assert (answers.status, answers.headers["x-request-id"]) == (404, "first"), "the body was read"
    assert answers.rest.count(b"model_not_found") == 2


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("HEAD", CHAT, "POST"),
        ("PUT", "/health", "GET, HEAD"),
    ],
)
def test_another_method_is_refused_with_those_that_there_are(
    gateway: GatewayProcess, method: str, path: str, allow: str
) -> None:
    with gateway.client() as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)


def test_what_can_be_got_has_a_head(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        for path in ("/", "/v1/models", "/health/live", "/static/app.js"):
            got, headed = client.get(path), client.head(path)
            assert (headed.status_code, headed.content) == (200, b"")
            assert headed.headers["content-length"] == got.headers["content-length"]
        assert client.head("/flowedge/v1/activity").status_code == 200  # and ends, unlike the stream
        assert client.head("/v1/nothing").status_code == 404


def test_answers_to_http_1_0_are_not_chunked(gateway: GatewayProcess) -> None:
    old = b"GET %b HTTP/1.0\r\nHost: localhost\r\n\r\n"
    with connected(gateway.host) as connection:
        connection.sendall(old % b"/flowedge/v1/activity")
        content = b""
        while b"\n\n" not in content:
            content += connection.recv(4096)
    stream = parsed(content)
    assert stream.status == 200 and "transfer-encoding" not in stream.headers
    assert stream.rest.startswith(b"event: ")
    whole = exchange(gateway.host, old % b"/v1/models")
    assert json.loads(whole.rest)["object"] == "list"


ENCODED = b'{"model": "none", "messages": [{"role": "user", "content": "hello"}]}'


@pytest.mark.parametrize(
    ("encoding", "content", "status"),
    [
        pytest.param("gzip", gzip.compress(ENCODED), 404, id="gzip"),
        pytest.param("x-gzip", gzip.compress(ENCODED), 404, id="its old name"),
        pytest.param("deflate", zlib.compress(ENCODED), 404, id="deflate"),
        pytest.param("deflate, gzip", gzip.compress(zlib.compress(ENCODED)), 404, id="one in the other"),
        pytest.param("identity", ENCODED, 404, id="none"),
        pytest.param("br", b"\x0b\x02", 415, id="brotli"),
        pytest.param("gzip", ENCODED, 400, id="not gzip"),
        pytest.param("gzip", gzip.compress(ENCODED)[:-9], 400, id="cut"),
        pytest.param("gzip", gzip.compress(b" " * (1 << 21)), 413, id="a bomb"),
    ],
)
def test_encoded_bodies(gateway: GatewayProcess, encoding: str, content: bytes, status: int) -> None:
    with gateway.client() as client:
        answer = client.post(CHAT, content=content, headers={"content-encoding": encoding})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    if status == 404:
        assert answer.json()["error"]["code"] == "model_not_found"
    if status == 415:
        assert answer.headers["accept-encoding"] == "gzip, deflate"


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


def test_readiness_names_what_is_gone(gateway: GatewayProcess) -> None:
    with gateway.client() as client:
        ready = client.get("/health/ready")
        models = client.get("/v1/models").json()["data"]
    assert ready.status_code == 503
    assert NOWHERE in ready.json()["reason"]
    assert [(model["id"], model["flowedge"]["ready"]) for model in models] == [("gone", [])]
