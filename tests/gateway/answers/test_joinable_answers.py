"""Requests that come again with their Idempotency-Key: they join the answer that runs, or has just ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from flowedge.core.request import DEFAULT_PRIORITY
from flowedge.gateway.access.keys import KeyFile, KeyLimits
from tests.gateway.asking import COMPLETIONS, await_sessions, body, raw_request
from tests.gateway.http_sockets import connected
from tests.support.gateways import GatewayProcess, gateway_before

CHAT = "/v1/chat/completions"
JOINED = "x-flowedge-joined"
LONG = 1900  # tokens: longer than a test takes
SOME = 40
HELLO: list[Any] = [{"role": "user", "content": "Add two numbers."}]


@pytest.fixture(scope="module")
def keeping(cluster4: str) -> Iterator[GatewayProcess]:
    """A gateway that keeps few answers, for a short time."""
    settings = {"limits": {"joinable_answers": 4, "joinable_bytes": 50_000}, "deadlines": {"joinable_s": 60}}
    with gateway_before(cluster4, settings=settings) as gateway:
        yield gateway


def keyed(key: str, **more: str) -> dict[str, str]:
    return {"idempotency-key": key, **more}


def drawn(tokens: int = SOME, **changes: Any) -> dict[str, Any]:
    """Return a body whose answer differs each time that it is computed."""
    return body(tokens, temperature=1.0, **changes)


def posted(
    gateway: GatewayProcess, content: dict[str, Any], path: str = COMPLETIONS, **headers: str
) -> httpx.Response:
    with gateway.client(headers=headers) as client:
        return client.post(path, content=json.dumps(content))  # the bytes of raw_request


def test_the_same_request_again_gets_the_same_answer(keeping: GatewayProcess) -> None:
    names = {"x-request-id": "first"}
    first = posted(keeping, drawn(), **keyed("whole", **names))
    again = posted(keeping, drawn(), **keyed("whole"))
    assert first.status_code == again.status_code == 200
    assert first.content == again.content, "also its id and its usage"
    assert again.headers[JOINED] == "first" and JOINED not in first.headers
    assert again.headers["x-request-id"] != "first"
    other = posted(keeping, drawn(), **keyed("other"))
    assert other.json()["choices"] != first.json()["choices"]
    keeping.line("request=first", f"new_tokens={SOME}")
    assert keeping.samples()["flowedge_gateway_joined_requests_total"] >= 1


def test_a_stream_is_joined_while_it_runs(keeping: GatewayProcess) -> None:
    content = drawn(100, stream=True)
    with (
        ThreadPoolExecutor(1) as pool,
        keeping.client(headers=keyed("running")) as client,
        client.stream("POST", COMPLETIONS, content=json.dumps(content)) as first,
    ):
        arriving = first.iter_raw()
        begun = next(arriving)
        joined = pool.submit(posted, keeping, content, **keyed("running"))
        whole = begun + b"".join(arriving)
    again = joined.result()
    assert again.headers[JOINED] == first.headers["x-request-id"]
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.content == whole
    assert whole.endswith(b"data: [DONE]\n\n")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_runs_on_when_its_client_has_gone(
    keeping: GatewayProcess, cluster4: str, stream: bool
) -> None:
    key = f"left-{stream}"
    with connected(keeping.host) as connection:
        connection.sendall(raw_request(100, f"Idempotency-Key: {key}", f"X-Request-Id: {key}", stream=stream))
        await_sessions(cluster4, 1)
    keeping.line(f"request={key}", "reason=client_gone")
    again = posted(keeping, body(100, stream=stream), **keyed(key))
    assert again.headers[JOINED] == key
    assert again.status_code == 200
    if stream:
        assert again.text.endswith("data: [DONE]\n\n")
    else:
        assert again.json()["usage"]["completion_tokens"] == 100
    await_sessions(cluster4, 0)


def test_an_answer_that_nobody_joins_is_ended(cluster4: str) -> None:
    with gateway_before(cluster4, settings={"deadlines": {"abandoned_s": 0.5}}) as gateway:
        with connected(gateway.host) as connection:
            connection.sendall(raw_request(LONG, "Idempotency-Key: a", "X-Request-Id: alone", stream=True))
            await_sessions(cluster4, 1)
        gateway.line("request=alone", "reason=client_gone")
        await_sessions(cluster4, 0)
        gateway.line("request=alone", "reason=cancelled", "no client reads")
        answer = posted(gateway, body(4), **keyed("a"))
    assert answer.status_code == 200, "the key is free again, also for another request"


def test_a_gateway_that_stops_does_not_wait_for_clients_that_may_come(cluster4: str) -> None:
    settings = {"deadlines": {"abandoned_s": 600, "drain_s": 60}}
    with gateway_before(cluster4, settings=settings) as gateway:
        with connected(gateway.host) as connection:
            connection.sendall(raw_request(LONG, "Idempotency-Key: a", "X-Request-Id: gone", stream=True))
            await_sessions(cluster4, 1)
        gateway.line("request=gone", "reason=client_gone")
        gateway.request_stop()
        assert gateway.wait() == 0
        await_sessions(cluster4, 0)


def test_a_key_is_of_one_request(keeping: GatewayProcess) -> None:
    assert posted(keeping, drawn(4), **keyed("once")).status_code == 200
    chat = {"model": "bundled", "messages": HELLO, "max_tokens": 4}
    for content, path in ((drawn(5), COMPLETIONS), (chat, CHAT)):
        refused = posted(keeping, content, path, **keyed("once"))
        assert refused.status_code == 422
        assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert posted(keeping, drawn(4), **keyed("once")).headers[JOINED]


@pytest.mark.parametrize("key", ["", "a" * 256])
def test_a_malformed_key_is_refused(keeping: GatewayProcess, key: str) -> None:
    refused = posted(keeping, drawn(4), **keyed(key))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "idempotency-key"


def test_a_refused_request_is_not_kept(keeping: GatewayProcess) -> None:
    wrong = body(4, model="none")
    for _ in range(2):
        refused = posted(keeping, wrong, **keyed("refused"))
        assert refused.status_code == 404 and JOINED not in refused.headers
    assert posted(keeping, drawn(4), **keyed("refused")).status_code == 200


def test_few_answers_are_kept_the_latest(keeping: GatewayProcess) -> None:
    for number in range(6):
        assert posted(keeping, drawn(2), **keyed(f"many-{number}")).status_code == 200
    kept = [JOINED in posted(keeping, drawn(2), **keyed(f"many-{number}")).headers for number in (5, 4, 3, 2)]
    assert kept == [True] * 4
    assert JOINED not in posted(keeping, drawn(2), **keyed("many-0")).headers


@pytest.mark.proof
def test_a_large_answer_is_sent_but_not_kept(keeping: GatewayProcess, cluster4: str) -> None:
    large = drawn(80, stream=True, logprobs=20)
    for _ in range(2):
        answer = posted(keeping, large, **keyed("large"))
        assert len(answer.content) > 50_000
        assert answer.text.endswith("data: [DONE]\n\n") and JOINED not in answer.headers
    with connected(keeping.host) as connection:
        request = raw_request(
            LONG, "Idempotency-Key: larger", "X-Request-Id: larger", stream=True, logprobs=20
        )
        connection.sendall(request)
        received = 0
        while received < 65_000:
            received += len(connection.recv(65536))
    keeping.line("request=larger", "reason=client_gone")
    await_sessions(cluster4, 0)


def test_each_caller_has_keys_of_its_own(cluster4: str, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    secrets = [file.add(name, DEFAULT_PRIORITY, KeyLimits()) for name in ("anna", "ben")]
    with gateway_before(cluster4, settings={"access": {"keys_file": str(file.path)}}) as gateway:
        answers = [
            posted(gateway, drawn(8), **keyed("same", authorization=f"Bearer {secret}"))
            for secret in (*secrets, secrets[0])
        ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [JOINED in answer.headers for answer in answers] == [False, False, True]
    assert answers[0].content == answers[2].content


def test_ollamas_streams_are_joined(keeping: GatewayProcess) -> None:
    asked = {"model": "bundled", "messages": HELLO, "options": {"num_predict": 16, "temperature": 1}}
    first, again = (posted(keeping, asked, "/api/chat", **keyed("ollama")) for _ in range(2))
    assert first.content == again.content and again.headers[JOINED]
    assert json.loads(again.text.splitlines()[-1])["done"]


def test_the_official_client_sends_a_key(keeping: GatewayProcess) -> None:
    client = OpenAI(base_url=f"{keeping.url}/v1", api_key="none", max_retries=2)
    with client:
        answers = [
            client.chat.completions.create(
                model="bundled",
                messages=HELLO,
                max_tokens=16,
                temperature=1.0,
                extra_headers=keyed("official"),
            )
            for _ in range(2)
        ]
    assert answers[0] == answers[1]
