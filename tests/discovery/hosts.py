"""Processes on hosts that are network namespaces, for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flowedge.version import PROTOCOL_VERSION
from flowedge_testbed.paced.namespaces import Namespaces
from tests.support.commands import run_command
from tests.support.processes import AgentProcess, FlowEdgeProcess, running

DEADLINE_S = 120.0


@contextmanager
def process(network: Namespaces, host: int, *arguments: str, **launch: Any) -> Iterator[FlowEdgeProcess]:
    """A process of a host; it is killed when the context ends."""
    made = FlowEdgeProcess(*arguments, enter=partial(network.enter, host), **launch)
    made.start()
    try:
        yield made
    finally:
        made.kill()
        made.remove()


@contextmanager
def agent(network: Namespaces, host: int, name: str, state: Path, port: int = 0) -> Iterator[AgentProcess]:
    """A real agent on every network of a host."""
    made = AgentProcess(
        name,
        *("--host", "0.0.0.0", "--insecure"),
        port=port,
        settings={"discovery": {"ttl_s": 2}},
        environment={"FLOWEDGE_STATE_DIR": str(state)},
        enter=partial(network.enter, host),
    )
    with running(made):
        yield made


@contextmanager
def advertised(network: Namespaces, host: int, device_id: str, name: str) -> Iterator[None]:
    """An announcement with no agent behind it."""
    program = [sys.executable, "-m", "tests.discovery.advertise"]
    arguments = [device_id, name, "0.0.0.0:5001", str(PROTOCOL_VERSION), "2"]
    with process(network, host, *arguments, command=program) as announcer:
        announcer.line("advertised")
        yield


def run(network: Namespaces, host: int, *command: str) -> str:
    """Run a command on a host and return its output."""
    done = run_command(network.enter(host, command), timeout=DEADLINE_S)
    warned = "--insecure" in command
    assert not done.stderr or (warned and done.stderr.startswith("--insecure: ")), done.stderr
    return done.stdout
