"""Attacks by multicast, which anybody on the network can send without credentials."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.discovery.discovery import discover
from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.cluster.clusters import Cluster
from tests.discovery.fake_agents import fields
from tests.discovery.hosts import process
from tests.discovery.packets import MALFORMED, SERVICE, announcement, nsec, pointer, response, sender
from tests.discovery.test_discovery import advertised
from tests.support.background import meanwhile
from tests.support.free_ports import free_ports
from tests.support.processes import CLI, AgentProcess, FlowEdgeProcess, agents, running

in_namespaces = pytest.mark.skipif(
    why_not() is not None, reason=f"ATTACKS BETWEEN HOSTS ARE NOT TESTED: {why_not()}"
)
FAKES = 200


@contextmanager
def sent_again_and_again(*packets: bytes) -> Iterator[None]:
    def send(ended: threading.Event) -> None:
        with sender() as sending:
            while not ended.wait(0.05):
                for packet in packets:
                    sending.send(packet)

    with meanwhile(send):
        yield


def test_malformed_announcements_do_not_end_a_search() -> None:
    token = uuid.uuid4().hex[:8]
    with advertised(f"id-{token}", token, 5001), sent_again_and_again(*MALFORMED):
        found = asyncio.run(discover(2.0))
    assert token in [device.name for device in found]


def test_an_address_outside_of_the_network_is_not_dialled() -> None:
    token = uuid.uuid4().hex[:8]
    away = announcement(token, "8.8.8.8", 53, {**fields(0, "0" * 16), "name": token, "id": token})
    with sent_again_and_again(away):
        found = asyncio.run(discover(1.5))
    assert token not in [device.name for device in found]


def test_malformed_announcements_break_neither_the_list_nor_the_watch_of_devices() -> None:
    token = uuid.uuid4().hex[:8]
    with sent_again_and_again(*MALFORMED):
        listing, watch = FlowEdgeProcess("devices", "--json"), FlowEdgeProcess("devices", "--watch", "--json")
        listing.start()
        watch.start()
        with advertised(f"id-{token}", token, 5001):
            assert json.loads(watch.next_line(token, "came"))["change"] == "came"
        assert listing.wait(60) == 0
        assert watch.running
        watch.stop()
    assert "Traceback" not in "\n".join([*listing.lines, *watch.lines])
    listing.stop()
    listing.remove()
    watch.remove()


@pytest.mark.proof
@in_namespaces
def test_the_keeper_assembles_its_pipeline_though_200_fake_agents_are_announced(tmp_path: Path) -> None:
    with Namespaces(3) as network, faked(network, 2, tmp_path) as (cluster, _):
        stage = member(network, cluster, 1, "stage", CertificateRole.AGENT)
        settings = {"pipeline": {"model": "bundled", "count": 1, "look_s": 0.5}}
        keeper = member(network, cluster, 0, "keeper", CertificateRole.DRAFT_NODE, settings)
        with running(stage, keeper):
            for text in ("announced agents are asked", "a role is being taken", "the role is ready"):
                keeper.line(text)
            rounds = [line for line in keeper.lines if "announced agents are asked" in line]
            assert len(rounds) <= 2 + FAKES // 64
            assert "Traceback" not in "\n".join(keeper.lines)
            admin = cluster.member("admin", CertificateRole.ADMIN)
            command = network.enter(0, [*CLI, "devices", "--json", "--cluster-dir", str(admin)])
            listed = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout
    rows = {row["name"]: row for row in json.loads(listed)}
    assert rows["stage"]["problem"] is None and rows["stage"]["round_trip_s"] > 0
    assert sum(row["problem"] is not None for row in rows.values()) >= FAKES


@contextmanager
def faked(network: Namespaces, host: int, directory: Path) -> Iterator[tuple[Cluster, FlowEdgeProcess]]:
    """A cluster whose network is full of fake agents, announced by a host."""
    cluster = Cluster(directory, free_ports(2))
    program = [sys.executable, "-m", "tests.discovery.fake_agents"]
    arguments = [network.hosts[host], cluster.authority.id, str(FAKES)]
    with process(network, host, *arguments, command=program) as attacker:
        attacker.line("announced")
        yield cluster, attacker


def member(
    network: Namespaces,
    cluster: Cluster,
    host: int,
    name: str,
    role: CertificateRole,
    settings: dict[str, dict[str, object]] | None = None,
) -> AgentProcess:
    """An agent of the cluster on a host, on every network."""
    state = {"FLOWEDGE_STATE_DIR": str(cluster.member(name, role))}
    return AgentProcess(
        "",
        *("--host", "0.0.0.0", "--advertise"),
        settings={"metrics": {"enabled": False}, **(settings or {})},
        environment=state,
        enter=partial(network.enter, host),
    )


@pytest.mark.proof
def test_100000_names_take_neither_the_memory_of_an_agent_nor_of_a_watch() -> None:
    watch = FlowEdgeProcess("devices", "--watch", "--json")
    with agents(["flooded"], advertise=True) as (agent,):
        watch.start()
        watch.next_line("flooded", "came")
        before = resident(agent), resident(watch)
        flood(100_000)
        after = resident(agent), resident(watch)
        agent.describe()
        lines = len(agent.lines), len([line for line in watch.lines if "came" in line])
        watch.stop()
    watch.remove()
    print(f"MiB of agent and watch before {before} and after {after} 100,000 names; lines {lines}")
    assert all(late - early < 40 for early, late in zip(before, after, strict=True))
    assert lines[1] <= 600


def flood(count: int) -> None:
    """Announce that many agents, half of them incomplete, with large TXT records."""
    with sender() as sending:
        for number in range(count):
            name = f"n{number:06d}{'x' * 40}"
            if number % 2:
                large = {**fields(number, "0" * 16), "id": name[:40], "padding": "x" * 200}
                sending.send(announcement(name, "127.0.0.1", 1 + number % 60000, large))
            else:
                sending.send(response(pointer([name.encode(), *SERVICE], ttl=2**31)))
            if number % 100 == 0:
                sending.send(response(nsec([name.encode(), b"local"])))
            if number % 20 == 0:
                time.sleep(0.005)


def resident(process: FlowEdgeProcess) -> int:
    """Return the MiB that a process takes, when it has nothing to do."""
    running = psutil.Process(process.pid)
    while running.cpu_percent(0.5) > 20:
        pass
    return int(running.memory_info().rss) >> 20
