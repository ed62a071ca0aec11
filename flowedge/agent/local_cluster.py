"""The agents of a pipeline as processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flowedge.cluster.process import VARIABLE, forget_started_agents, process_secret, speak_plaintext_to
from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError
from flowedge.device.process import module_command

MAX_LOCAL_STAGES = 64
_LISTENING = re.compile(r"listening on (\S+:\d+)")
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02

AgentCommand = Callable[[int, str], list[str]]
"""Returns the command that starts an agent, by its place (the draft node is 0) and its name."""


def agent_command(place: int, name: str) -> list[str]:  # noqa: ARG001 (the same at every place)
    """Return the command of this installation's agent, on loopback, without a configuration file."""
    return [
        *module_command("flowedge.cli.main"),
        "agent",
        *("--host", "127.0.0.1"),
        *("--port", "0"),
        *("--name", name),
        *("--config", os.devnull),
        "--hub",  # the command that starts the agents may ask the hub, too
        "--exit-with-parent",
    ]


def check_local_stages(stages: int, middles: int = 0) -> None:
    """Check the number of agents of a cluster on this machine.

    Raises:
        BadRequestError: when there is no stage, or there are too many agents.
    """
    if not 1 <= stages <= MAX_LOCAL_STAGES - middles:
        raise BadRequestError(
            f"{stages} local stages were asked for; 1 to {MAX_LOCAL_STAGES - middles} are possible"
        )


@dataclass
class LocalAgent:
    """One agent process.

    Attributes:
        log: file of its output; address: where it listens, "" before it does.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def last_output_line(self) -> str:
        """Return the last line of its output, which tells why it ended."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


class LocalCluster:
    """Agents on loopback: a draft node, stages, and agents for middle models. No process is left behind.

    Other programs of this machine neither find the agents nor may call them. Each agent
    is a process with one thread in torch. It stops when its standard input closes, so that it ends with this
    process, however this process ends.

    Attributes:
        agents: all of them, once started: the draft node, the stages, the agents for middle models.
    """

    def __init__(
        self,
        stages: int,
        *,
        middles: int = 0,
        name: str = "local",
        draft_node: bool = True,
        start_timeout_s: float = _START_TIMEOUT_S,
        group: str = "",
        command: AgentCommand = agent_command,
    ) -> None:
        """Prepare agents, which `start` starts.

        Args:
            stages, middles: numbers of agents.
            name: the agents are `name`-d0, `name`-v1 and so on, with a random part that makes names unique.
            draft_node: whether there is an agent for the draft node; without it this process has to be it.
            group: under which the agents are announced (see DiscoverySettings); "" for no announcement.
            command: its agent must say where it listens, as `flowedge agent` does, and stop when its standard
                input closes.
        """
        check_local_stages(stages, middles)
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
        self._group = group
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
        """Start all agents at once and wait until they listen. Upon an error no agent is left.

        Raises:
            DeviceError: when an agent ends instead.
            DeadlineError: when an agent does not listen in time.
        """
        self._logs = tempfile.TemporaryDirectory(prefix="flowedge-")
        try:
            for place, name in enumerate(self._names):
                self.agents.append(
                    _launch(name, self._command(place, name), Path(self._logs.name), self._group)
                )
            deadline = time.monotonic() + self._start_timeout_s
            for agent in self.agents:
                agent.address = _await_address(agent, deadline, self._start_timeout_s)
            speak_plaintext_to(agent.address for agent in self.agents)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask all agents to end, and kill those that do not within a few seconds."""
        for agent in self.agents:
            agent.process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for agent in self.agents:
            _reap(agent.process, deadline)
        forget_started_agents(agent.address for agent in self.agents)
        self.agents = []
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _launch(name: str, command: list[str], logs: Path, group: str) -> LocalAgent:
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
                "FLOWEDGE_AGENT__THREADS": "1",  # the agents share the cores
                "PYTHONUNBUFFERED": "1",
                # Its own, so that the agents belong to no cluster.
                "FLOWEDGE_STATE_DIR": str(logs / "state"),
                # Nobody else is to find them or to use them.
                VARIABLE: process_secret(),
                "FLOWEDGE_METRICS__ENABLED": "false",
                "FLOWEDGE_AGENT__ADVERTISE": str(bool(group)).lower(),
                "FLOWEDGE_DISCOVERY__GROUP": group,
            },
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the agents
        )
    return LocalAgent(name, process, log)


def _await_address(agent: LocalAgent, deadline: float, timeout_s: float) -> str:
    while True:
        # Asked before the log is read, so that the log is complete if the agent has ended.
        ended = agent.process.poll() is not None
        found = _LISTENING.search(agent.log.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found.group(1)
        if ended:
            raise DeviceError(agent.name, f"its agent ended at its start: {agent.last_output_line()}")
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
