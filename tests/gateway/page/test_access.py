"""Without a key one may look at the cluster; with a key, chat and see the texts of its own requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from flowedge.core.request import DEFAULT_PRIORITY
from flowedge.gateway.access.keys import KeyFile, KeyLimits
from tests.gateway.page.talking import ask, await_answer, settings
from tests.support.browser import Browser
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, running
from tests.support.waiting import await_that


@pytest.fixture(scope="module")
def keyed(
    page_agents: list[AgentProcess], page_gateway: GatewayProcess
) -> Iterator[tuple[GatewayProcess, str]]:
    """A second gateway in front of the same pipeline, which asks for a key; and a key."""
    gateway = GatewayProcess("--keys", "required", peers=[page_agents[0].address])
    secret = KeyFile(gateway.keys_file).add("page", DEFAULT_PRIORITY, KeyLimits())
    with running(gateway):
        yield gateway, secret


def _trees(gateway: GatewayProcess, key: str, begun: threading.Event) -> Iterator[dict]:
    """Yield the trees of the activity, until an answer has ended."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with gateway.client() as client, client.stream("GET", "/flowedge/v1/activity", headers=headers) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data:"):
                continue
            told = json.loads(line.removeprefix("data:"))
            if "trees" not in told:
                continue
            begun.set()
            yield from told["trees"]
            if any(tree["kind"] == "finished" for tree in told["trees"]):
                return


def _await_key(gateway: GatewayProcess, key: str) -> None:
    """Wait until a running gateway knows a new key."""
    with gateway.client(headers={"authorization": f"Bearer {key}"}) as client:
        await_that(lambda: client.get("/v1/models").status_code == 200)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reader", ["nobody", "another", "asker"])
def test_texts_go_to_the_key_that_asked_only(keyed: tuple[GatewayProcess, str], reader: str) -> None:
    gateway, secret = keyed
    key = {"nobody": "", "asker": secret}.get(reader)
    if key is None:
        key = KeyFile(gateway.keys_file).add("other", DEFAULT_PRIORITY, KeyLimits())
        _await_key(gateway, key)
    begun, trees = threading.Event(), []
    reading = threading.Thread(target=lambda: trees.extend(_trees(gateway, key, begun)))
    reading.start()
    assert begun.wait(60)
    with gateway.client(headers={"authorization": f"Bearer {secret}"}) as client:
        shown = client.get("/flowedge/v1/cluster").json()
        body = {
            "model": "bundled",
            "messages": [{"role": "user", "content": "Tell me about bees."}],
            "max_tokens": 8,
            "temperature": 0,  # at which this answer has more than eight tokens
        }
        answer = client.post("/v1/chat/completions", json={**body, "stream": True})
        assert answer.status_code == 200, answer.text
    reading.join(60)
    assert shown["may_chat"]
    assert shown["key_required"]
    assert sum(len(tree["nodes"]) for tree in trees if tree["kind"] == "accepted") == 8
    told = {"texts" in tree for tree in trees if tree["nodes"]}
    assert told == {reader == "asker"}
    assert all(isinstance(tree["session"], int) for tree in trees), "names of sessions are told to nobody"


def test_the_page_asks_for_the_key_and_keeps_it_in_the_tab(
    keyed: tuple[GatewayProcess, str], browser: Browser
) -> None:
    gateway, secret = keyed
    browser.hosts()
    browser.open(f"{gateway.url}/#chat")
    browser.button("Enter an API key").click()
    field = browser.wait(lambda: browser.one("dialog input"))
    assert not browser.one("#question").is_enabled()
    field.send_keys(secret, Keys.ENTER)
    browser.wait(lambda: browser.one("#question").is_enabled(), "the key was taken")
    settings(browser, max_tokens="4")
    ask(browser, "Hello")
    assert await_answer(browser)
    assert secret not in browser.run("return JSON.stringify({...localStorage})")
    assert browser.hosts() == {gateway.address}


def test_the_cluster_is_shown_without_addresses(
    keyed: tuple[GatewayProcess, str], page_agents: list[AgentProcess]
) -> None:
    gateway, _ = keyed
    with gateway.client() as client:
        answer = client.get("/flowedge/v1/cluster")
        assert not answer.json()["may_chat"]
        assert page_agents[1].address not in answer.text
        assert {device["name"] for device in answer.json()["pipelines"][0]["devices"]} == {
            agent.name for agent in page_agents[:3]
        }
        refused = client.post("/v1/chat/completions", json={})
    assert refused.status_code == 401


def test_files_of_the_page_are_checked_again_and_may_load_nothing_else(page_gateway: GatewayProcess) -> None:
    with page_gateway.client() as client:
        page = client.get("/", headers={"accept": "text/html,*/*"})
        script = client.get("/static/app.js")
        known = client.get("/static/app.js", headers={"if-none-match": script.headers["etag"]})
        missing = client.get("/static/../routes.py")
        assert httpx.codes.is_success(client.get("/static/vendor/LICENSE-preact.txt").status_code)
    assert (page.headers["content-type"], script.headers["content-type"]) == (
        "text/html; charset=utf-8",
        "text/javascript; charset=utf-8",
    )
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "<script>" not in page.text
    assert known.status_code == 304
    assert not known.content
    assert missing.status_code == 404
