"""Devices that are lost in different ways are told apart, and answers go on in each case."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from flowedge.client import Client, Recovery
from flowedge.cluster.process import Security
from flowedge.network.device_state import FLAPS
from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.support.commands import run_command
from tests.support.free_ports import free_port
from tests.support.processes import AgentProcess, agents, running
from tests.support.seams import set_own_security
from tests.support.waiting import await_that
from tests.support.whole_answers import whole_answer

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
STORY = "Tell me a long story about a hen and a goose."
ASKED = {"max_new_tokens": 120, "ignore_eos": True, "temperature": 1.0, "seed": 3}
NOWHERE = "02:00:00:00:00:01"  # a hardware address that no device has


def told_of(client: Client, lose: Callable[[], None]) -> list[Recovery]:
    """Return what an answer tells that has lost a device on its way, and goes on with the same tokens."""
    whole = whole_answer(client, STORY, **ASKED)
    told: list[Recovery | None] = []
    answer = client.generate(STORY, on_recovering=told.append, **ASKED)  # type: ignore[arg-type]
    lost = False
    for _ in answer:
        if not lost and len(answer.token_ids) >= 20:
            lost = True
            lose()
    assert (answer.token_ids, answer.text) == (whole.token_ids, whole.text)
    assert told[-1] is None
    return [each for each in told if each is not None]


@dataclass
class Shelf:
    """A draft node that keeps a pipeline of v1 and v2, with v3 as a spare."""

    draft_node: AgentProcess
    stages: list[AgentProcess]

    def client(self) -> Client:
        """Return a client, once the pipeline has the stages of the settings."""
        client = Client(self.draft_node.address, timeout_s=120)
        wanted = [each.address for each in self.stages[:2]]
        client.await_ready(120)
        await_that(lambda: list(client.describe().stage_addresses) == wanted, "v1 and v2 are not used")
        return client


def settings_for(stages: list[str]) -> dict[str, dict[str, object]]:
    kept = {"model": "bundled", "look_s": 0.05, "stages": stages[:2], "spares": stages[2:]}
    return {"pipeline": kept, "deadlines": {"recovery_s": 60.0}}


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    with agents(["v1", "v2", "v3"]) as stages:
        settings = settings_for([each.address for each in stages])
        draft_node = AgentProcess("d0", "--no-advertise", port=free_port(), settings=settings)
        with running(draft_node):
            yield Shelf(draft_node, stages)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("place", "number", "state", "said"),
    [
        pytest.param(
            *(0, signal.SIGKILL, "ended", "the device answers, but its agent has ended"),
            marks=pytest.mark.proof,
        ),
        (1, signal.SIGSTOP, "frozen", "it takes connections, but answers no calls"),
        (1, signal.SIGTERM, "stopping", "it is being stopped"),
    ],
)
def test_a_process_is_lost(shelf: Shelf, place: int, number: signal.Signals, state: str, said: str) -> None:
    stage = shelf.stages[place]
    with shelf.client() as client:
        told = told_of(client, partial(stage.signal, number))
    if number is signal.SIGSTOP:
        stage.signal(signal.SIGCONT)
    else:
        stage.wait()
        stage.kill()
        stage.start()
        stage.await_address()
    assert (told[-1].device, told[-1].state) == (stage.name, state)
    assert said in str(told[-1])
    assert shelf.draft_node.line("a device of the pipeline is lost", f"peer={stage.name}", f"state={state}")
    samples = shelf.draft_node.samples()
    assert samples[f'flowedge_devices_lost_total{{state="{state}"}}'] >= 1


@pytest.mark.proof
def test_a_device_that_comes_and_goes_is_left_out(shelf: Shelf) -> None:
    """It is taken back when no answer runs, each time, until it is left out for longer."""

    def restart() -> None:
        stage.kill()
        stage.start()
        stage.await_address()

    stage = shelf.stages[0]
    for _ in range(FLAPS):
        with shelf.client() as client:  # it has its place again
            assert told_of(client, restart)[-1].device == stage.name
    shelf.draft_node.line("not taken back for a while", f"peer={stage.address}")


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Namespaces, Shelf]]:
    with Namespaces(4) as network:
        names = ("d0", "v1", "v2", "v3")
        addresses = [f"{host}:7070" for host in network.hosts]
        made = [
            AgentProcess(
                name,
                *("--host", "0.0.0.0", "--insecure", "--no-advertise"),
                port=7070,
                settings=settings_for(addresses[1:]) if name == "d0" else None,
                environment={"FLOWEDGE_STATE_DIR": str(tmp_path_factory.mktemp(name))},
                enter=partial(network.enter, place),
            )
            for place, name in enumerate(names)
        ]
        with running(*made):
            for agent, address in zip(made, addresses, strict=True):
                agent.address = address
            yield network, Shelf(made[0], made[1:])


def run_in(network: Namespaces, place: int | None, *command: str) -> None:
    entered = network.enter_bridge(command) if place is None else network.enter(place, command)
    done = run_command(entered)
    assert done.returncode == 0, done.stderr


between_hosts = pytest.mark.skipif(why_not() is not None, reason=f"NO LINK IS LOST: {why_not()}")


def half_connect(network: Namespaces) -> None:
    """Have nothing that v1 sends reach v2."""
    nowhere = ("lladdr", NOWHERE, "nud", "permanent", "dev", "eth0")
    run_in(network, 1, "ip", "neighbour", "replace", network.hosts[2], *nowhere)


@pytest.mark.proof
@between_hosts
def test_links_are_lost(hosts: tuple[Namespaces, Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    network, shelf = hosts
    set_own_security(monkeypatch, Security(None, insecure=True))
    with shelf.client() as client:
        told = told_of(client, partial(half_connect, network))
        assert (told[-1].device, told[-1].state) == ("v2", "half-connected")
        assert network.hosts[2] not in str(client.describe().stage_addresses), (
            "another device than v2 is taken"
        )
        told = told_of(client, partial(run_in, network, None, "ip", "link", "set", "port1", "down"))
        assert (told[-1].device, told[-1].state) == ("v1", "unreachable")


@pytest.mark.proof
@between_hosts
def test_a_device_that_stays_half_connected_is_tried_in_vain(
    hosts: tuple[Namespaces, Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken back after a while, which fails, and the pipeline goes on with the spare again."""
    network, shelf = hosts
    set_own_security(monkeypatch, Security(None, insecure=True))
    with shelf.client() as client:
        told_of(client, partial(half_connect, network))
        with_spare = list(client.describe().stage_addresses)
        shelf.draft_node.line("its stages are back")
        client.await_ready(60)
        await_that(lambda: list(client.describe().stage_addresses) == with_spare, "the spare is not used")
        assert client.generate("Hi", max_new_tokens=3).result().text
