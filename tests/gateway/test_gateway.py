"""A gateway in front of a pipeline: what it tells of itself, and requests that it refuses."""

from __future__ import annotations

import pytest

from flowedge.core.ids import check_request_id
from flowedge.version import VERSION
from tests.support.gateways import GatewayProcess


def test_health(gateway4: GatewayProcess, cluster4: str) -> None:
    with gateway4.client() as client:
        assert client.get("/health/live").json() == {"status": "live"}
        assert client.get("/health/ready").json() == {"status": "ready"}
        health = client.get("/health")
    assert health.status_code == 200
    models = {"bundled": {"pipelines": [cluster4], "ready": [cluster4], "recovering": [], "problems": {}}}
    assert health.json() == {"status": "ready", "version": VERSION, "models": models}


def test_models_in_openais_form(gateway4: GatewayProcess) -> None:
    with gateway4.client() as client:
        listed = client.get("/v1/models").json()
        one = client.get("/v1/models/bundled").json()
        unknown = client.get("/v1/models/gpt")
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["owned_by"]) == ("bundled", "model", "flowedge")
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )


def test_request_ids_go_in_and_out(gateway4: GatewayProcess) -> None:
    with gateway4.client() as client:
        assert (
            client.get("/v1/models", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        )
        check_request_id(client.get("/v1/models").headers["x-request-id"])
        for unusable in ("a b", "a" * 100, "trace/7"):
            answer = client.get("/v1/models", headers={"x-request-id": unusable})
            assert answer.status_code == 200
            check_request_id(answer.headers["x-request-id"])
    gateway4.line("request=mine-1", "status=200")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "192.168.1.7", ""])
def test_other_hosts_are_refused_on_loopback(gateway4: GatewayProcess, host: str) -> None:
    with gateway4.client() as client:
        answer = client.get("/v1/models", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"
    gateway4.line(f"request={answer.headers['x-request-id']}", "endpoint=/v1/models status=403")


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:9", "[::1]:80", "a.localhost"])
def test_names_of_loopback_are_taken(gateway4: GatewayProcess, host: str) -> None:
    with gateway4.client() as client:
        assert client.get("/v1/models", headers={"host": host}).status_code == 200


def test_pages_of_other_sites_may_not_post(gateway4: GatewayProcess) -> None:
    with gateway4.client() as client:
        for origin in (
            "https://evil.example",
            "null",
            "http://[",
            f"https://localhost:{gateway4.host[1] + 1}",
        ):
            answer = client.post("/v1/nothing", json={}, headers={"origin": origin})
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert client.post("/v1/nothing", json={}, headers={"origin": gateway4.url}).status_code == 404
        assert "access-control-allow-origin" not in client.get("/v1/models").headers


def test_files_of_the_page_write_no_lines(gateway4: GatewayProcess) -> None:
    before = len(gateway4.lines)
    with gateway4.client() as client:
        assert client.get("/static/app.js").status_code == 200
        assert client.get("/static/none.js").status_code == 404
    gateway4.line("endpoint=/static/{path:path} status=404", after=before)
    of_files = [line for line in gateway4.lines[before:] if "endpoint=/static/" in line]
    assert not [line for line in of_files if "status=200" in line]


def test_metrics_count_requests(gateway4: GatewayProcess, cluster4: str) -> None:
    name = 'flowedge_gateway_requests_total{endpoint="/v1/models",model="",outcome="ok",pipeline=""}'
    before = gateway4.samples().get(name, 0)
    with gateway4.client() as client:
        client.get("/v1/models")
    after = gateway4.samples()
    assert after[name] == before + 1
    labels = f'{{model="bundled",pipeline="{cluster4}"}}'
    assert after[f"flowedge_gateway_pipeline_ready{labels}"] == 1
    assert after[f"flowedge_gateway_running{labels}"] == 0
