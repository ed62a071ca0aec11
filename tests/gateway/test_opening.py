"""A gateway listens at once, and says that its pipelines are being set up."""

from __future__ import annotations

import signal

from tests.gateway.asking import COMPLETIONS, WAIT_S, body
from tests.support.gateways import GatewayProcess
from tests.support.processes import FlowEdgeProcess


def test_requests_are_told_to_wait_until_the_pipeline_is_ready() -> None:
    gateway = GatewayProcess("--stages", "1", "--model", "bundled")
    gateway.start()
    try:
        FlowEdgeProcess.await_address(gateway)
        with gateway.client() as client:
            assert client.get("/health/live").status_code == 200
            early = client.post(COMPLETIONS, json=body(2))
            ready = client.get("/health/ready")
            cluster = client.get("/flowedge/v1/cluster").json()
            with client.stream("GET", "/flowedge/v1/activity") as watched:
                gateway.line("models: bundled")
                assert client.post(COMPLETIONS, json=body(2)).status_code == 200
                # Whoever looked at the page before there was a pipeline sees what it does.
                assert any(line == "event: activity" for line in watched.iter_lines())
            assert client.get("/flowedge/v1/cluster").json()["opening"] is None
        assert (early.status_code, early.headers["retry-after"]) == (503, "2")
        assert early.json()["error"]["code"] == "not_ready"
        assert "the gateway opens its pipelines: this machine: " in early.json()["error"]["message"]
        assert ready.status_code == 503 and "opens its pipelines" in ready.json()["reason"]
        assert cluster["opening"] is not None and not cluster["pipelines"]
    finally:
        gateway.stop()
        gateway.remove()


def test_a_gateway_that_is_stopped_while_it_opens_ends_at_once() -> None:
    gateway = GatewayProcess("--stages", "1", "--model", "bundled")
    gateway.start()
    try:
        FlowEdgeProcess.await_address(gateway)
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(WAIT_S) == 0
    finally:
        gateway.stop()
        gateway.remove()
