"""Keys of a gateway that runs: made with the command, limits of each key, refusals in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from flowedge.cli.main import run
from flowedge.core.request import DEFAULT_PRIORITY
from flowedge.gateway.access.keys import KeyFile, KeyLimits
from tests.gateway.application import GatewayHere, gateway_here
from tests.gateway.asking import COMPLETIONS, body
from tests.support.gateways import GatewayProcess, ServedGateway
from tests.support.processes import running
from tests.support.waiting import await_that

READ_AGAIN_S = 30.0


Keyed = tuple[GatewayHere, dict[str, str]]


@pytest.fixture(scope="module")
def keyed(cluster4: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """The application of a gateway for all networks, and its keys by name."""
    file = KeyFile(tmp_path_factory.mktemp("state") / "keys.json")
    limits = {
        "anna": KeyLimits(),
        "minute": KeyLimits(requests_per_minute=1),
        "tokens": KeyLimits(tokens_per_minute=10),
    }
    made = {name: file.add(name, DEFAULT_PRIORITY, each) for name, each in limits.items()}
    settings = {"http": {"listen": "0.0.0.0:8000"}, "access": {"keys_file": file.path}}
    with gateway_here(cluster4, settings) as gateway:
        yield gateway, made


def ask(gateway: ServedGateway, key: str, tokens: int = 4) -> httpx.Response:
    with gateway.client(headers={"authorization": f"Bearer {key}"}) as client:
        return client.post(COMPLETIONS, json=body(tokens))


def counted(gateway: ServedGateway, key: str, endpoint: str, outcome: str) -> float:
    """Return how many requests had an outcome without having reached a pipeline."""
    labels = f'{{endpoint="{endpoint}",model="",outcome="{outcome}",pipeline=""}}'
    return gateway.samples(key).get(f"flowedge_gateway_requests_total{labels}", 0)


def test_a_refused_request_is_counted_at_its_endpoint(keyed: Keyed) -> None:
    gateway, made = keyed
    places = (COMPLETIONS, "/v1/models/{name:path}", "/api/chat", "other")
    before = [counted(gateway, made["anna"], place, "missing_api_key") for place in places]
    with gateway.client() as client:
        for path in (COMPLETIONS, "/v1/models/no/such", "/api/chat", "/v1/nothing"):
            assert client.post(path, json={}).status_code == 401
    after = [counted(gateway, made["anna"], place, "missing_api_key") for place in places]
    assert after == [count + 1 for count in before]


def test_a_key_is_needed_and_errors_have_openais_shape(keyed: Keyed) -> None:
    gateway, made = keyed
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


def test_requests_a_minute(keyed: Keyed) -> None:
    gateway, made = keyed
    assert ask(gateway, made["minute"]).status_code == 200
    refused = ask(gateway, made["minute"])
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert ask(gateway, made["anna"]).status_code == 200, "limits are of each key"


def test_tokens_a_minute(keyed: Keyed) -> None:
    gateway, made = keyed
    assert ask(gateway, made["tokens"], tokens=8).status_code == 200
    refused = ask(gateway, made["tokens"])
    assert refused.status_code == 429
    assert "10 tokens a minute" in refused.json()["error"]["message"]


def test_removed_and_new_keys_are_noticed(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*arguments: str) -> str:
        """Run `flowedge serve keys` and return its standard output."""
        assert run(["serve", "keys", *arguments, "--keys-file", str(gateway.keys_file)]) == 0
        return capsys.readouterr().out.strip()

    gateway = GatewayProcess(peers=[cluster4], listen="0.0.0.0:0")
    gone = keys("add", "gone")
    with running(gateway):
        assert ask(gateway, gone).status_code == 200
        gateway.line("key=gone", "status=200", f"endpoint={COMPLETIONS}")
        assert keys("remove", "gone") == "removed gone"
        fresh = keys("add", "fresh", "--priority", "batch", "--concurrent", "3")
        await_that(lambda: ask(gateway, fresh).status_code != 401, "it is not known", READ_AGAIN_S)
        assert ask(gateway, gone).status_code == 401
        assert not any(key in line for key in (gone, fresh) for line in gateway.lines)
    (listed,) = json.loads(keys("list", "--json"))
    assert (listed["name"], listed["priority"], listed["concurrent"]) == ("fresh", "batch", 3)
    assert "batch" in keys("list")


def test_no_keys_has_to_be_said_and_is_warned_of(cluster4: str) -> None:
    gateway = GatewayProcess("--no-keys", peers=[cluster4], listen="0.0.0.0:0")
    with running(gateway):
        gateway.line("--no-keys: anyone who can connect to 0.0.0.0:0 may use this gateway")
        with gateway.client() as client:
            assert client.get("/v1/models").status_code == 200
