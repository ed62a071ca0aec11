"""`flowedge doctor` between hosts that something is wrong with, each in a network namespace."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowedge.doctor.compute import try_compute
from flowedge.doctor.memory import disk_facts
from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.discovery.hosts import DEADLINE_S, agent, run
from tests.support.processes import CLI

between_hosts = pytest.mark.skipif(why_not() is not None, reason=f"THE DOCTOR IS NOT TESTED: {why_not()}")
Pair = tuple[Namespaces, str]
TIMING = ("link-slow", "link-latency", "link-not-measured")  # a machine that is busy has these


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two hosts with an agent each, and the address of the first one's."""
    with (
        Namespaces(2) as network,
        agent(network, 0, "kitchen", tmp_path_factory.mktemp("kitchen"), port=7070),
        agent(network, 1, "attic", tmp_path_factory.mktemp("attic"), port=7070),
    ):
        yield network, f"{network.hosts[0]}:7070"


def doctor(network: Namespaces, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings by code, as the second host sees it; what its memory and disk are like is not
    the test's."""
    command = [*CLI, "doctor", "--json", "--insecure", "--no-libraries", "--timeout", "3", *options]
    done = subprocess.run(
        network.enter(1, command), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stdout, done.stderr
    found = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    for code in ("memory-low", "swap-used", "disk-low"):
        found.pop(code, None)
    return done.returncode, found


@between_hosts
def test_nothing_is_found_where_nothing_is_wrong(pair: Pair) -> None:
    found = doctor(pair[0])[1]
    assert not [code for code in found if code not in TIMING], found


@between_hosts
def test_a_slow_link_a_closed_port_and_a_smaller_mtu_are_found(pair: Pair) -> None:
    network, _ = pair
    closed = f"{network.hosts[0]}:7071"
    network.limit(0, 20.0)
    run(network, 0, "ip", "link", "set", "eth0", "mtu", "1280")
    try:
        code, found = doctor(network, "--peer", closed)
    finally:
        run(network, 0, "ip", "link", "set", "eth0", "mtu", "1500")
        run(network, 0, "tc", "qdisc", "delete", "dev", "eth0", "root")
    assert code == 1
    assert set(found) >= {"link-slow", "port-closed", "mtu-differs", "mtu-path"}
    assert "from kitchen to attic" in found["link-slow"]["detail"]
    assert closed in found["port-closed"]["detail"]
    assert "Start the agent there" in found["port-closed"]["remedy"]
    assert "1280 bytes pass" in found["mtu-path"]["detail"]


@between_hosts
def test_an_interface_without_multicast_is_found(pair: Pair) -> None:
    network, kitchen = pair
    run(network, 1, "ip", "link", "set", "dev", "eth0", "multicast", "off")
    try:
        code, found = doctor(network, "--no-rate", "--peer", kitchen)
    finally:
        run(network, 1, "ip", "link", "set", "dev", "eth0", "multicast", "on")
    assert code == 1
    assert {"multicast-off", "multicast-lost"} <= set(found)
    assert "eth0" in found["multicast-off"]["detail"]


@between_hosts
def test_multicast_that_a_switch_does_not_pass_is_found(pair: Pair) -> None:
    network, kitchen = pair
    port = ["ip", "link", "set", "port1", "type", "bridge_slave", "mcast_flood"]
    subprocess.run(network.enter_bridge([*port, "off"]), check=True)
    try:
        _, found = doctor(network, "--no-rate", "--peer", kitchen)
    finally:
        subprocess.run(network.enter_bridge([*port, "on"]), check=True)
    assert {"multicast-lost", "multicast-alone"} <= set(found)
    assert found["multicast-lost"]["device"] == "kitchen"


def test_the_disk_of_a_cache_that_is_not_there_yet_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(bytes(1000))
    facts = disk_facts(tmp_path / "later" / "cache", 5)
    assert (facts.limit, facts.used) == (5, 0)
    assert facts.free > 0
    assert disk_facts(tmp_path, 5).used == 1000


@pytest.mark.slow
def test_the_libraries_of_this_installation_work() -> None:
    trial = try_compute().cpu
    assert (trial.problem, trial.quant_problems) == ("", {})


def test_a_library_that_hangs_is_given_up() -> None:
    assert "did not end within 0.01 s" in try_compute(timeout_s=0.01).cpu.problem
