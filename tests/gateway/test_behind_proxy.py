"""A gateway below a path of a proxy, which takes the path off, and says who asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.gateway.asking import COMPLETIONS, body
from tests.gateway.path_proxy import FORWARDED_FOR, PathProxy, proxy_before
from tests.support.gateways import GatewayProcess, gateway_before

ROOT = "/llm"
_IMPORTED = re.compile(r"(?:from |import )\"([^\"]+)\"")  # relative to the module
_SHOWN = re.compile(r"(?:src|href)=\"([\w./-]+)\"")  # relative to the page, also where a module writes it


@pytest.fixture(scope="module")
def gateway(cluster4: str) -> Iterator[GatewayProcess]:
    options = ["--root-path", ROOT, "--allowed-host", "llm.example", "--trusted-proxy", "127.0.0.1"]
    with gateway_before(cluster4, options=options) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(gateway: GatewayProcess) -> Iterator[PathProxy]:
    with proxy_before(gateway.host, ROOT) as started:
        yield started


@pytest.fixture
def client(proxy: PathProxy) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=proxy.url, headers={"host": "llm.example", "accept": "text/html, */*"}, trust_env=False
    ) as made:
        yield made


def test_the_page_and_all_files_that_it_names_are_below_the_path(client: httpx.Client) -> None:
    seen: set[str] = set()
    wanted = [f"{ROOT}/"]
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert path.startswith(f"{ROOT}/")
        if path.endswith((".js", "/")):
            found = [urljoin(path, each) for each in _IMPORTED.findall(answer.text)]
            found += [urljoin(f"{ROOT}/", each) for each in _SHOWN.findall(answer.text)]
            wanted += [each for each in found if not urlsplit(each).netloc]
    assert {f"{ROOT}/static/app.js", f"{ROOT}/static/api.js", f"{ROOT}/static/page.css"} <= seen


def test_the_page_fetches_below_the_path(client: httpx.Client) -> None:
    fetched = re.findall(r"call\(\"([^\"]+)\"", client.get(f"{ROOT}/static/api.js").text)
    assert "v1/chat/completions" in fetched and "flowedge/v1/cluster" in fetched
    for path in fetched:
        below = urljoin(f"{ROOT}/", path)
        assert below.startswith(f"{ROOT}/")
        if "activity" not in path and "completions" not in path:
            assert client.get(below).status_code == 200


def test_endpoints_answer_and_errors_keep_their_shape(client: httpx.Client) -> None:
    assert client.get(f"{ROOT}/health/ready").status_code == 200
    assert client.get(f"{ROOT}/v1/models").json()["data"][0]["id"] == "bundled"
    answer = client.post(f"{ROOT}{COMPLETIONS}", json=body(2))
    assert answer.json()["usage"]["completion_tokens"] == 2
    missing = client.get(f"{ROOT}/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "not_found_error"


def test_its_pages_own_origin_may_ask(client: httpx.Client) -> None:
    own = client.post(f"{ROOT}{COMPLETIONS}", json=body(1), headers={"origin": "https://llm.example"})
    other = client.post(f"{ROOT}{COMPLETIONS}", json=body(1), headers={"origin": "https://evil.example"})
    assert (own.status_code, other.status_code) == (200, 403)


def test_a_trusted_proxy_is_believed(client: httpx.Client, gateway: GatewayProcess) -> None:
    # The gateway names its own URL where it redirects.
    moved = client.get(f"{ROOT}/health/live/", headers={"x-request-id": "behind-1"})
    assert moved.status_code == 307
    assert moved.headers["location"] == f"https://llm.example{ROOT}/health/live"
    gateway.line("request=behind-1", f"peer={FORWARDED_FOR}")


def test_others_are_not_believed(cluster4: str) -> None:
    options = ["--root-path", ROOT, "--allowed-host", "llm.example", "--trusted-proxy", "192.0.2.1"]
    with (
        gateway_before(cluster4, options=options) as gateway,
        proxy_before(gateway.host, ROOT) as proxy,
        httpx.Client(
            base_url=proxy.url, headers={"host": "llm.example", "accept": "text/html, */*"}, trust_env=False
        ) as client,
    ):
        moved = client.get(f"{ROOT}/health/live/", headers={"x-request-id": "behind-2"})
        assert moved.headers["location"].startswith("http://llm.example/")
        gateway.line("request=behind-2", "peer=127.0.0.1")
