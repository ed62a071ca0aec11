"""Agents as real processes, for tests; none is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil

from flowedge.net.link_settings import LinkSettings
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION

START_S = 60.0
LOAD_S = 240.0
_PROGRAM = """
import sys
from flowedge.agent.config.agent_config import AgentConfig
from flowedge.agent.main import serve
from flowedge.net.link_settings import LinkSettings
LinkSettings.max_replies = int(sys.argv[2])
serve(AgentConfig.model_validate_json(sys.argv[1]))
"""


@dataclass
class AgentProcess:
    """One agent; `address` is set once it serves, `started_s` is how long that took."""

    name: str
    process: subprocess.Popen[str]
    address: str = ""
    started_s: float = 0.0
    lines: list[str] = field(default_factory=list)

    def describe(self, timeout_s: float = 10.0) -> pb.Device:
        """Its own description."""
        with grpc.insecure_channel(self.address) as channel:
            device: pb.Device = rpc.AgentStub(channel).Describe(pb.DescribeRequest(), timeout=timeout_s)
        return device

    def resident_bytes(self) -> int:
        """Memory it holds, as the system sees it."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this one process."""
        self.process.send_signal(number)


@contextlib.contextmanager
def agents(
    names: Sequence[str],
    *,
    advertise: bool = False,
    environment: dict[str, str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    max_replies: int = LinkSettings.max_replies,
) -> Iterator[list[AgentProcess]]:
    """Agents that serve; all are gone when the context ends, whatever happened to them.

    settings: of all of them, by section; max_replies: see LinkSettings.
    """
    running: list[AgentProcess] = []
    try:
        for name in names:
            chosen = {"agent": {"name": name, "advertise": advertise}, **(settings or {})}
            running.append(_launch(name, chosen, max_replies, environment or {}))
        for agent in running:
            _await_address(agent)
        yield running
    finally:
        for agent in running:
            with contextlib.suppress(ProcessLookupError):
                agent.process.send_signal(signal.SIGCONT)
            agent.process.terminate()
        for agent in running:
            try:
                agent.process.wait(15)
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.wait(15)
                raise AssertionError(f"{agent.name} did not stop when told to: {agent.lines}") from None
        assert not any(psutil.pid_exists(agent.process.pid) for agent in running)


def become_pipeline(
    agents_: Sequence[AgentProcess], *, drafter: str = "bundled", pipeline: str = "test", **changes: object
) -> None:
    """Make the first agent the draft node of the others, with the bundled model."""
    role = pb.DraftNodeRole(
        pipeline=pipeline,
        model="bundled",
        drafter=drafter,
        stages=[agent.address for agent in agents_[1:]],
        protocol_version=PROTOCOL_VERSION,
        **changes,  # type: ignore[arg-type]
    )
    with grpc.insecure_channel(agents_[0].address) as channel:
        last = list(rpc.AgentStub(channel).BecomeDraftNode(role, timeout=LOAD_S))[-1]
    assert last.ready


def _launch(
    name: str, settings: Mapping[str, Any], max_replies: int, environment: dict[str, str]
) -> AgentProcess:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(settings), str(max_replies)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    agent = AgentProcess(name, process)
    agent.started_s = -time.monotonic()
    threading.Thread(target=_collect, args=(agent,), daemon=True).start()
    return agent


def _collect(agent: AgentProcess) -> None:
    assert agent.process.stdout is not None
    for line in agent.process.stdout:
        agent.lines.append(line)
        if "listening on " in line and not agent.address:
            agent.started_s += time.monotonic()
            agent.address = line.rsplit("listening on ", 1)[1].strip()


def _await_address(agent: AgentProcess) -> None:
    deadline = time.monotonic() + START_S
    while not agent.address:
        assert agent.process.poll() is None, f"{agent.name} ended: {agent.lines}"
        assert time.monotonic() < deadline, f"{agent.name} does not serve: {agent.lines}"
        time.sleep(0.02)
