"""A pipeline of real agents, a gateway that has set it up, and a browser that looks at its page."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import names_of_agents
from tests.support.board_files import why_no_thermal_folder, with_thermal_folder
from tests.support.browser import Browser, browsing
from tests.support.gateways import GatewayProcess
from tests.support.processes import AgentProcess, running
from tests.support.scheduling import shared

QUICK = {"pipelines": {"ask_s": 0.5, "most_ask_s": 1}}


@pytest.fixture(scope="package", params=shared("page"))
def own_network() -> dict[str, str]:
    """The environment of processes that find each other, and none of the agents of other tests."""
    return {"FLOWEDGE_DISCOVERY__GROUP": uuid.uuid4().hex[:6]}


@pytest.fixture(scope="package")
def thermal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage finds in the place of the kernel's thermal devices, where that can be had."""
    return tmp_path_factory.mktemp("thermal")


@pytest.fixture(scope="package")
def page_agents(
    processes_end: None, own_network: dict[str, str], thermal_folder: Path
) -> Iterator[list[AgentProcess]]:
    """A draft node, two stages, and an idle agent."""
    placed: dict[str, Any] = {"fresh": True, "enter": partial(with_thermal_folder, thermal_folder)}
    if why_no_thermal_folder():
        placed = {}
    made = [
        AgentProcess(name, "--advertise", environment=own_network, **(placed if number == 1 else {}))
        for number, name in enumerate(names_of_agents(4))
    ]
    with running(*made):
        yield made


@pytest.fixture(scope="package")
def page_gateway(page_agents: list[AgentProcess], own_network: dict[str, str]) -> Iterator[GatewayProcess]:
    peers = [agent.address for agent in page_agents[:3]]
    gateway = GatewayProcess(peers=peers, environment=own_network, settings=QUICK)
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
    browser.forget(page_gateway.url)
    browser.open(f"{page_gateway.url}/#chat")
    browser.wait(lambda: browser.one(".speed .good"), "the pipeline is ready")
    yield browser
    assert browser.complaints() == []
    assert browser.hosts() <= {page_gateway.address}


@pytest.fixture
def scripts(shared_browser: Browser, page_gateway: GatewayProcess) -> Iterator[Browser]:
    """The page as the last test has left it, for the functions of its scripts."""
    if not shared_browser.driver.current_url.startswith(page_gateway.url):
        shared_browser.open(page_gateway.url)
    shared_browser.complaints()
    yield shared_browser
    assert shared_browser.complaints() == []
