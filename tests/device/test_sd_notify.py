"""Notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flowedge.device.sd_notify import READY, STOPPING, WATCHDOG, Notifier
from flowedge.live.compute_thread import ComputeThread
from tests.support.processes import agents

WAIT_S = 30.0


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET, and the socket that it names."""
    abstract = f"@flowedge-{uuid.uuid4().hex}"
    name = abstract if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if request.param == "abstract" else name)
        receiver.settimeout(WAIT_S)
        yield name, receiver


def until(receiver: socket.socket, wanted: str) -> list[str]:
    """Return all datagrams up to the first that begins as wanted."""
    told: list[str] = []
    while not told or not told[-1].startswith(wanted):
        told.append(receiver.recv(4096).decode())
    return told


def test_an_agent_tells_that_it_serves_lives_and_stops(manager: tuple[str, socket.socket]) -> None:
    name, receiver = manager
    with agents(["v1"], environment={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"}) as (agent,):
        told = until(receiver, READY)
        assert WATCHDOG not in told and STOPPING not in told
        assert f"STATUS=listening on {agent.address}; no role" in told
        until(receiver, WATCHDOG)
        until(receiver, WATCHDOG)
        agent.signal(signal.SIGTERM)
        until(receiver, STOPPING)
        assert "draining" in until(receiver, "STATUS=")[-1]
        assert agent.wait(WAIT_S) == 0


def test_an_agent_whose_loop_is_stopped_gives_no_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(WAIT_S)
        with agents(["v1"], environment={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "100000"}) as (agent,):
            until(receiver, WATCHDOG)
            agent.signal(signal.SIGSTOP)
            while psutil.Process(agent.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)  # the test has a deadline
            receiver.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    receiver.recv(4096)  # what came before it stopped
            receiver.settimeout(0.3)
            with pytest.raises(TimeoutError):
                receiver.recv(4096)


async def happens(condition: Callable[[], bool]) -> None:
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def test_a_lane_beyond_its_limit_is_known() -> None:
    async def test() -> None:
        compute, release = ComputeThread("d", job_s=0.01), threading.Event()
        assert compute.overdue_s == 0.0
        work = asyncio.ensure_future(compute.run(lambda: release.wait(WAIT_S)))
        patient = asyncio.ensure_future(compute.run(lambda: release.wait(WAIT_S), limit_s=1000.0))
        await happens(lambda: compute.overdue_s > 0.0)
        release.set()
        await asyncio.gather(work, patient)
        await happens(lambda: compute.overdue_s == 0.0)
        compute.stop(1.0)

    asyncio.run(test())


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_service_manager_nothing_is_asked_and_nothing_fails(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    assert notifier.watchdog_s is None
    notifier.notify(READY)
    notifier.status("idle")
