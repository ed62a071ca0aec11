"""Connections that do nothing, and clients that ask at once."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.gateway.application import gateway_here
from tests.gateway.asking import COMPLETIONS, WAIT_S, body
from tests.gateway.http_sockets import connected
from tests.support.gateways import GatewayProcess

IDLE = 4200  # more than limits.connections, all of one address


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(before[0], min(IDLE + 500, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_thousands_of_silent_connections_keep_nobody_from_answers(
    gateway4: GatewayProcess, many_descriptors: None
) -> None:
    with ExitStack() as idle:
        for _ in range(IDLE):
            idle.enter_context(connected(gateway4.host))
        with gateway4.client() as client:
            answer = client.post(COMPLETIONS, json=body(8))
            assert 1000 < gateway4.samples()["flowedge_gateway_connections"] <= 1024
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_requests_beyond_what_a_draft_node_takes_wait_in_the_gateway(cluster4: str) -> None:
    settings = {"pipelines": {"requests_each": 2}}
    with gateway_here(cluster4, settings) as gateway, ThreadPoolExecutor(12) as pool:
        with gateway.client() as client:
            asked = [pool.submit(client.post, COMPLETIONS, json=body(6, temperature=0)) for _ in range(12)]
            answers = [each.result(WAIT_S) for each in asked]
        assert {answer.status_code for answer in answers} == {200}
        assert gateway.samples()["flowedge_gateway_waiting"] == 0
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
