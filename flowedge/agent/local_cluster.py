"""A pipeline's agents as processes of this machine, for trying things out and for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from flowedge.security.process import speak_plaintext_to

MAX_LOCAL_STAGES = 64
_LISTENING = re.compile(r"listening on (\S+:\d+)")
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02

AgentCommand = Callable[[int, str], list[str]]
"""The command that starts the agent of a name, by its place among the agents: the draft node first."""


def agent_command(place: int, name: str) -> list[str]:  # noqa: ARG001 (of no place in particular)
    """The agent of this installation, on loopback; the file of an agent that serves here is not its own."""
    command = [sys.executable, "-m", "flowedge.cli.main", "agent"]
    return [
        *command,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--name",
        name,
        "--config",
        os.devnull,
        "--hub",  # as the command that starts them may
        "--exit-with-parent",
    ]


@dataclass
class LocalAgent:
    """One agent process; `address` is known once it listens."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def output_tail(self) -> str:
        """The last line it wrote, to say why it ended."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


class LocalCluster:
    """N stage agents, a draft node, and agents for middle models, on loopback; leaves no process behind.

    Each is a real agent process with one compute thread. They end with this process however it ends: an agent
    stops when its standard input does.

    Attributes:
        draft_node, stages, middles: the agents, once started; `agents` is all of them in this order.
    """

    def __init__(
        self,
        stages: int,
        *,
        middles: int = 0,
        name: str = "local",
        draft_node: bool = True,
        start_timeout_s: float = _START_TIMEOUT_S,
        command: AgentCommand = agent_command,
    ) -> None:
        """Names are `name`-d0, `name`-v1 and so on, with a random part so that clusters do not meet.

        draft_node: whether there is an agent for one; without, this process is to be the draft node.
        command: an agent that says where it listens, as that of `flowedge agent` does, and stops when its
            standard input closes.
        """
        if not 1 <= stages <= MAX_LOCAL_STAGES - middles:
            raise BadRequestError(
                f"{stages} local stages were asked for; 1 to {MAX_LOCAL_STAGES - middles} are possible"
            )
        token = uuid.uuid4().hex[:6]
        roles = [
            *(["d0"] if draft_node else []),
            *(f"v{place + 1}" for place in range(stages)),
            *(f"m{number + 1}" for number in range(middles)),
        ]
        self._names = [f"{name}-{token}-{role}" for role in roles]
        self._first_stage, self._num_stages = int(draft_node), stages
        self._start_timeout_s = start_timeout_s
        self._command = command
        self._logs: tempfile.TemporaryDirectory[str] | None = None
        self.agents: list[LocalAgent] = []

    @property
    def draft_node(self) -> LocalAgent:
        return self.agents[0]

    @property
    def stages(self) -> list[LocalAgent]:
        return self.agents[self._first_stage : self._first_stage + self._num_stages]

    @property
    def middles(self) -> list[LocalAgent]:
        return self.agents[self._first_stage + self._num_stages :]

    def start(self) -> None:
        """Starts all agents at once and waits until they listen.

        DeviceError when one ends instead, DeadlineError when one is not ready in time; none is left then.
        """
        self._logs = tempfile.TemporaryDirectory(prefix="flowedge-")
        try:
            for place, name in enumerate(self._names):
                self.agents.append(_launch(name, self._command(place, name), Path(self._logs.name)))
            deadline = time.monotonic() + self._start_timeout_s
            for agent in self.agents:
                agent.address = _await_address(agent, deadline, self._start_timeout_s)
            speak_plaintext_to(agent.address for agent in self.agents)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Asks all agents to end and kills those that have not after a few seconds."""
        for agent in self.agents:
            agent.process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for agent in self.agents:
            _reap(agent.process, deadline)
        self.agents = []
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _launch(name: str, command: list[str], logs: Path) -> LocalAgent:
    log = logs / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                # Not this machine's: agents for one run are of no cluster, and speak to this process alone.
                "FLOWEDGE_STATE_DIR": str(logs / "state"),
            },
            start_new_session=True,  # Ctrl-C is for the command; it stops its agents itself
        )
    return LocalAgent(name, process, log)


def _await_address(agent: LocalAgent, deadline: float, timeout_s: float) -> str:
    while True:
        # Asked before the log is read: what it wrote before it ended is then in the log.
        ended = agent.process.poll() is not None
        found = _LISTENING.search(agent.log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found.group(1)
        if ended:
            raise DeviceError(agent.name, f"its agent ended at its start: {agent.output_tail()}")
        if time.monotonic() > deadline:
            raise DeadlineError(f"the agent {agent.name} did not listen within {timeout_s:g} s")
        time.sleep(_POLL_S)


def _reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    pipe: IO[bytes] | None = process.stdin
    if pipe is not None:
        pipe.close()
