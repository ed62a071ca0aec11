"""Stopping a gateway: what runs may end, new requests go elsewhere, a second signal ends all at once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway.asking import COMPLETIONS, await_sessions, body, raw_request
from tests.gateway.http_sockets import connected, parsed, read_all
from tests.support.gateways import GatewayProcess
from tests.support.processes import running

LONG = 1900
WAIT_S = 60.0


@pytest.fixture
def patient(cluster4: str) -> Iterator[GatewayProcess]:
    yield from _running(cluster4, drain_s=60.0)


@pytest.fixture
def hasty(cluster4: str) -> Iterator[GatewayProcess]:
    yield from _running(cluster4, drain_s=0.2)


def _running(address: str, drain_s: float) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(peers=[address], settings={"deadlines": {"drain_s": drain_s}})
    with running(gateway):
        yield gateway


@pytest.mark.proof
def test_running_answers_end_and_new_ones_are_refused(patient: GatewayProcess, cluster4: str) -> None:
    with patient.client() as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, COMPLETIONS, json=body(150))
        await_sessions(cluster4, 1)
        patient.signal(signal.SIGTERM)
        patient.line("the gateway is draining")
        with patient.client() as other:
            ready = other.get("/health/ready")
            refused = other.post(COMPLETIONS, json=body(1))
            assert other.get("/health/live").status_code == 200
        assert ready.status_code == 503 and "stopped" in ready.json()["reason"]
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.json()["error"]["code"] == "draining" and refused.headers["retry-after"]
        answer = asked.result(WAIT_S)
    refused_line = patient.line(f"request={refused.headers['x-request-id']}")
    assert f"endpoint={COMPLETIONS} status=503" in refused_line
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 150
    assert patient.wait(WAIT_S) == 0


def test_what_does_not_end_in_time_ends_with_an_error(hasty: GatewayProcess, cluster4: str) -> None:
    with connected(hasty.host) as streamed, connected(hasty.host) as whole:
        streamed.sendall(raw_request(LONG, stream=True))
        whole.sendall(raw_request(LONG))
        await_sessions(cluster4, 2)
        begun = streamed.recv(4096)
        hasty.signal(signal.SIGTERM)
        stream, refused = parsed(begun + read_all(streamed)), parsed(read_all(whole))
    assert stream.status == 200
    *_, last, done = stream.rest.decode().split("data: ")
    assert json.loads(last.split("\n")[0])["error"]["code"] == "draining"
    assert done.startswith("[DONE]")
    assert stream.rest.endswith(b"0\r\n\r\n"), "the body is complete"
    assert refused.status == 503
    assert json.loads(refused.rest)["error"]["code"] == "draining"
    assert hasty.wait(WAIT_S) == 0
    await_sessions(cluster4, 0)


def test_a_second_signal_ends_it_at_once(patient: GatewayProcess, cluster4: str) -> None:
    with connected(patient.host) as connection:
        connection.sendall(raw_request(LONG, stream=True))
        await_sessions(cluster4, 1)
        patient.signal(signal.SIGTERM)
        patient.line("the gateway is draining")
        patient.signal(signal.SIGTERM)
        answer = parsed(read_all(connection))
    assert b'"code":"draining"' in answer.rest.replace(b" ", b"")
    assert patient.wait(WAIT_S) == 128 + signal.SIGTERM
    await_sessions(cluster4, 0)
