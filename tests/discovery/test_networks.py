"""Discovery between hosts: network namespaces with real interfaces, multicast and agents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.discovery.hosts import DEADLINE_S, advertised, agent, process, run
from tests.support.processes import CLI

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason=f"DISCOVERY BETWEEN HOSTS IS NOT TESTED: {why_not()}"
)


@pytest.fixture(scope="module")
def network() -> Iterator[Namespaces]:
    """Three hosts on a bridge."""
    with Namespaces(3) as namespaces:
        yield namespaces


def devices(network: Namespaces, host: int, at_least: int = 1) -> list[dict[str, Any]]:
    """Return the devices that a host sees, asking again until there are `at_least` of them."""
    deadline = time.monotonic() + 60
    while True:
        rows: list[dict[str, Any]] = json.loads(
            run(network, host, *CLI, "devices", "--insecure", "--timeout", "3", "--json")
        )
        if len(rows) >= at_least or time.monotonic() > deadline:
            return rows


def test_an_agent_on_several_interfaces_is_shown_once_at_the_address_of_a_common_network(
    network: Namespaces, tmp_path: Path
) -> None:
    for interface, address in (("docker0", "172.17.0.1/16"), ("eth9", "10.255.255.1/30")):
        run(network, 0, "ip", "link", "add", interface, "type", "bridge")
        run(network, 0, "ip", "address", "add", address, "dev", interface)
        run(network, 0, "ip", "link", "set", interface, "up")
    try:
        with agent(network, 0, "kitchen", tmp_path):
            (row,) = devices(network, 1)
    finally:
        for interface in ("docker0", "eth9"):
            run(network, 0, "ip", "link", "delete", interface)
    port = row["address"].rpartition(":")[2]
    assert row["addresses"] == [f"{network.hosts[0]}:{port}"]
    assert row["problem"] is None
    assert row["round_trip_s"] > 0


def test_an_agent_that_is_killed_is_stale_and_then_gone_and_keeps_its_id(
    network: Namespaces, tmp_path: Path
) -> None:
    with process(network, 1, "devices", "--watch", "--json", "--insecure") as watch:
        with agent(network, 0, "kitchen", tmp_path) as kitchen:
            came = json.loads(watch.next_line("{"))
            kitchen.kill()
            changes = [json.loads(watch.next_line("{")) for _ in range(2)]
        with agent(network, 0, "kitchen", tmp_path) as kitchen:
            again = json.loads(watch.next_line("{"))
            kitchen.request_stop()
            left = json.loads(watch.next_line("{"))
    assert came["change"] == "came"
    assert [change["change"] for change in changes] == ["stale", "gone"]
    assert [again["change"], left["change"]] == ["came", "left"]
    assert again["device"]["id"] == came["device"]["id"]


def test_two_hosts_that_say_the_same_are_both_shown_and_named(network: Namespaces) -> None:
    with advertised(network, 0, "one-id", "kitchen"), advertised(network, 1, "one-id", "kitchen"):
        rows = devices(network, 2, at_least=2)
    assert [row["addresses"] for row in rows] == [[f"{host}:5001"] for host in network.hosts[:2]]
    assert rows[0]["duplicates"] == [f"same id as kitchen ({network.hosts[1]}:5001)"]


def test_an_interface_that_comes_later_is_announced_on(network: Namespaces) -> None:
    run(network, 0, "ip", "link", "set", "eth0", "down")
    try:
        with advertised(network, 0, "late-id", "late"):
            run(network, 0, "ip", "link", "set", "eth0", "up")
            deadline = time.monotonic() + DEADLINE_S
            while not (rows := devices(network, 1)):
                assert time.monotonic() < deadline, "it was not announced"
    finally:
        run(network, 0, "ip", "link", "set", "eth0", "up")
    assert rows[0]["addresses"] == [f"{network.hosts[0]}:5001"]
