"""A pipeline of real agents, a gateway that has set it up, and a browser that looks at its page."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import names_of_agents
from tests.support.browser import Browser, browsing
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, agents, running


@pytest.fixture(scope="package")
def own_network() -> dict[str, str]:
    """The environment of processes that find each other, and none of the agents of other tests."""
    return {"FLOWEDGE_DISCOVERY__GROUP": uuid.uuid4().hex[:6]}


@pytest.fixture(scope="package")
def page_agents(processes_end: None, own_network: dict[str, str]) -> Iterator[list[AgentProcess]]:
    """A draft node, two stages, and an idle agent."""
    with agents(names_of_agents(4), advertise=True, environment=own_network) as started:
        yield started


@pytest.fixture(scope="package")
def page_gateway(page_agents: list[AgentProcess], own_network: dict[str, str]) -> Iterator[GatewayProcess]:
    gateway = GatewayProcess(peers=[agent.address for agent in page_agents[:3]], environment=own_network)
    with running(gateway):
        yield gateway


@pytest.fixture(scope="package")
def shared_browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def browser(shared_browser: Browser, page_gateway: GatewayProcess) -> Iterator[Browser]:
    """The page, as a first visit finds it. At the end, nothing may have gone wrong on it."""
    browser = shared_browser
    browser.resize(1280, 860)
    browser.scheme(dark=False)
    browser.open(page_gateway.url)
    browser.driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    browser.complaints(), browser.hosts()
    browser.driver.get("about:blank")
    browser.open(f"{page_gateway.url}/#chat")
    browser.wait(lambda: browser.one(".speed .good"), "the pipeline is ready")
    yield browser
    assert browser.complaints() == []
    assert browser.hosts() <= {page_gateway.address}
