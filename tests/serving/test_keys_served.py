"""Keys of a gateway that runs: made with the command, limits of each key, refusals in OpenAI's shape."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flowedge.cli.main import EXIT_USAGE
from tests.serving.asking import COMPLETIONS, body
from tests.support.gateways import GatewayProcess
from tests.support.processes import CLI, running

READ_AGAIN_S = 30.0


def keys(gateway: GatewayProcess, *arguments: str) -> str:
    """Run `flowedge serve keys` and return its standard output."""
    done = subprocess.run(
        [*CLI, "serve", "keys", *arguments, "--keys-file", str(gateway.keys_file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def started(cluster4: str) -> Iterator[tuple[GatewayProcess, dict[str, str]]]:
    """A gateway with keys that listens on all networks, and the keys by name."""
    gateway = GatewayProcess(peers=[cluster4], listen="0.0.0.0:0")
    made = {
        "anna": keys(gateway, "add", "anna"),
        "minute": keys(gateway, "add", "minute", "--requests-per-minute", "1"),
        "tokens": keys(gateway, "add", "tokens", "--tokens-per-minute", "10"),
        "gone": keys(gateway, "add", "gone"),
    }
    with running(gateway):
        yield gateway, made


def ask(gateway: GatewayProcess, key: str, tokens: int = 4) -> httpx.Response:
    with gateway.client(headers={"authorization": f"Bearer {key}"}) as client:
        return client.post(COMPLETIONS, json=body(tokens))


def counted(gateway: GatewayProcess, key: str, endpoint: str, outcome: str) -> float:
    """Return how many requests had an outcome without having reached a pipeline."""
    labels = f'{{endpoint="{endpoint}",model="",outcome="{outcome}",pipeline=""}}'
    return gateway.samples(key).get(f"flowedge_gateway_requests_total{labels}", 0)


def test_a_refused_request_is_counted_at_its_endpoint(
    started: tuple[GatewayProcess, dict[str, str]],
) -> None:
    gateway, made = started
    places = (COMPLETIONS, "/v1/models/{name:path}", "/api/chat", "other")
    before = [counted(gateway, made["anna"], place, "missing_api_key") for place in places]
    with gateway.client() as client:
        for path in (COMPLETIONS, "/v1/models/no/such", "/api/chat", "/v1/nothing"):
            assert client.post(path, json={}).status_code == 401
    after = [counted(gateway, made["anna"], place, "missing_api_key") for place in places]
    assert after == [count + 1 for count in before]


def test_a_key_is_needed_and_errors_have_openais_shape(
    started: tuple[GatewayProcess, dict[str, str]],
) -> None:
    gateway, made = started
    with gateway.client() as client:
        for answer in (client.get("/v1/models"), client.post(COMPLETIONS, json=body())):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "missing_api_key")
        assert client.get("/metrics").status_code == 401
        assert client.get("/health/ready").status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": made["anna"]}).status_code == 200
    assert ask(gateway, "fe-wrong").json()["error"]["code"] == "invalid_api_key"
    assert ask(gateway, made["anna"]).status_code == 200
    assert gateway.samples(made["anna"])
    gateway.line("key=anna", "status=200", "endpoint=/v1/completions")
    assert not any(made["anna"] in line for line in gateway.lines)


def test_requests_a_minute(started: tuple[GatewayProcess, dict[str, str]]) -> None:
    gateway, made = started
    assert ask(gateway, made["minute"]).status_code == 200
    refused = ask(gateway, made["minute"])
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert ask(gateway, made["anna"]).status_code == 200, "limits are of each key"


def test_tokens_a_minute(started: tuple[GatewayProcess, dict[str, str]]) -> None:
    gateway, made = started
    assert ask(gateway, made["tokens"], tokens=8).status_code == 200
    refused = ask(gateway, made["tokens"])
    assert refused.status_code == 429
    assert "10 tokens a minute" in refused.json()["error"]["message"]


def test_removed_and_new_keys_are_noticed(started: tuple[GatewayProcess, dict[str, str]]) -> None:
    gateway, made = started
    assert ask(gateway, made["gone"]).status_code == 200
    assert keys(gateway, "remove", "gone") == "removed gone"
    fresh = keys(gateway, "add", "fresh", "--priority", "batch", "--concurrent", "3")
    deadline = time.monotonic() + READ_AGAIN_S
    while ask(gateway, fresh).status_code == 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ask(gateway, made["gone"]).status_code == 401
    assert '"name": "fresh"' in keys(gateway, "list", "--json")
    assert "batch" in keys(gateway, "list")


def test_without_keys_it_does_not_start_beyond_loopback(tmp_path: Path) -> None:
    command = [*CLI, "serve", "--listen", "0.0.0.0:0", "--stages", "1", "--config", "/dev/null"]
    command += ["--keys-file", str(tmp_path / "keys.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == EXIT_USAGE
    assert "flowedge serve keys add NAME" in done.stderr and "--no-keys" in done.stderr
    assert "starting" not in done.stderr


def test_no_keys_has_to_be_said_and_is_warned_of(cluster4: str) -> None:
    gateway = GatewayProcess("--no-keys", peers=[cluster4], listen="0.0.0.0:0")
    with running(gateway):
        gateway.line("--no-keys: anyone who can connect to 0.0.0.0:0 may use this gateway")
        with gateway.client() as client:
            assert client.get("/v1/models").status_code == 200
