"""A cable that is pulled out and put in again, between real agents on hosts that are network namespaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from flowedge.client import Client
from flowedge.cluster.process import Security
from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.support.commands import run_command
from tests.support.processes import AgentProcess, become_pipeline, running
from tests.support.seams import set_own_security

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=f"NO CABLE IS PULLED: {why_not()}"),
]
NAMES = ("d0", "v1", "v2")
PATIENT = {"deadlines": {"silence_s": 10.0}}
PULLED_S = 6.5  # TCP's own pauses grow to more than what is left of silence_s then


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Namespaces, list[AgentProcess]]]:
    with Namespaces(len(NAMES)) as network:
        made = [
            AgentProcess(
                name,
                *("--host", "0.0.0.0", "--insecure", "--no-advertise"),
                settings=PATIENT,
                environment={"FLOWEDGE_STATE_DIR": str(tmp_path_factory.mktemp(name))},
                enter=partial(network.enter, host),
            )
            for host, name in enumerate(NAMES)
        ]
        with running(*made):
            for agent, host in zip(made, network.hosts, strict=True):
                agent.address = f"{host}:{agent.address.rpartition(':')[2]}"
            become_pipeline(made)
            yield network, made


def cable(network: Namespaces, host: int, state: str) -> None:
    done = run_command(network.enter_bridge(["ip", "link", "set", f"port{host}", state]))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("host", [1, 2])
def test_an_answer_goes_on_when_the_cable_is_back(
    hosts: tuple[Namespaces, list[AgentProcess]], host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, started = hosts
    set_own_security(monkeypatch, Security(None, insecure=True))
    with Client(started[0].address, timeout_s=300, silence_s=30) as client:
        asked = {"max_new_tokens": 400, "ignore_eos": True, "seed": 3}
        expected = client.generate("Tell me a story", **asked).result().token_ids
        answer = client.generate("Tell me a story", **asked)
        next(answer)
        cable(network, host, "down")
        time.sleep(PULLED_S)
        cable(network, host, "up")
        assert answer.result().token_ids == expected
    resumed = [line for agent in started for line in agent.lines if "goes on by another connection" in line]
    assert any(f"peer={NAMES[host]}" in line for line in resumed), resumed
