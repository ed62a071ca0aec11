"""Answers that take longer than `deadlines.answer_s`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.gateway.application import GatewayHere, gateway_here
from tests.gateway.asking import COMPLETIONS, await_sessions, body

LONG = 1900  # tokens: longer than a test takes
HELLO = [{"role": "user", "content": "Add two numbers."}]
OLLAMA = {"model": "bundled", "messages": HELLO, "options": {"num_predict": LONG, "temperature": 0}}


@pytest.fixture(scope="module")
def instant(cluster4: str) -> Iterator[GatewayHere]:
    """A gateway whose answers are late before they begin."""
    with gateway_here(cluster4, {"deadlines": {"answer_s": 0.001}}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def hasty(cluster4: str) -> Iterator[GatewayHere]:
    """A gateway whose streams begin at once, and whose answers are late soon; one answer runs at a time."""
    deadlines = {"answer_s": 0.5, "comment_s": 0.01}
    settings: dict[str, dict[str, Any]] = {"deadlines": deadlines, "pipelines": {"requests_each": 1}}
    with gateway_here(cluster4, settings) as gateway:
        yield gateway


def check_late(status: int, error: dict[str, Any], limit: str) -> None:
    assert status == 504
    assert (error["type"], error["code"], error["param"]) == ("timeout", "timeout", None)
    assert error["message"] == (
        f"the answer was not complete after {limit} s, the limit given by deadlines.answer_s"
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_late_before_the_first_token(instant: GatewayHere, cluster4: str, stream: bool, n: int) -> None:
    with instant.client() as client:
        answer = client.post(COMPLETIONS, json=body(LONG, stream=stream, n=n))
        whole = client.post("/api/chat", json={**OLLAMA, "stream": stream})
    check_late(answer.status_code, answer.json()["error"], "0.001")
    assert whole.status_code == 504
    assert "deadlines.answer_s" in whole.json()["error"]
    await_sessions(cluster4, 0)


def test_late_with_those_that_wait_in_the_gateway(hasty: GatewayHere, cluster4: str) -> None:
    def late() -> float:
        start = f'flowedge_gateway_requests_total{{endpoint="{COMPLETIONS}"'
        counted = hasty.samples().items()
        return sum(n for name, n in counted if name.startswith(start) and 'outcome="timeout"' in name)

    before = late()
    with hasty.client() as client, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, COMPLETIONS, json=body(LONG)) for _ in range(3)]
        answers = [each.result() for each in asked]
    for answer in answers:
        check_late(answer.status_code, answer.json()["error"], "0.5")
    assert late() == before + 3
    await_sessions(cluster4, 0)


def test_late_in_a_stream(hasty: GatewayHere, cluster4: str) -> None:
    with hasty.client() as client:
        answer = client.post(COMPLETIONS, json=body(LONG, stream=True))
    assert answer.status_code == 200
    *_, last, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    check_late(504, json.loads(last.removeprefix("data: "))["error"], "0.5")
    assert '"finish_reason":"' not in answer.text
    await_sessions(cluster4, 0)


def test_late_in_a_response_that_streams(hasty: GatewayHere, cluster4: str) -> None:
    asked = {"model": "bundled", "input": "Hi", "max_output_tokens": LONG, "ignore_eos": True, "stream": True}
    with hasty.client() as client:
        answer = client.post("/v1/responses", json=asked)
    assert answer.status_code == 200
    event, data = answer.text.strip().split("\n\n")[-1].split("\n")
    assert event == "event: response.failed"
    error = json.loads(data.removeprefix("data: "))["response"]["error"]
    assert "0.5 s, the limit given by deadlines.answer_s" in error["message"]
    await_sessions(cluster4, 0)
