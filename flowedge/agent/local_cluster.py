"""The agents of a pipeline as processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from flowedge.cluster.process import VARIABLE, forget_started_agents, process_secret, speak_plaintext_to
from flowedge.core.errors import BadRequestError, DeadlineError, DeviceError, FlowEdgeError
from flowedge.core.plain_text import counted
from flowedge.device.compute import physical_cores
from flowedge.device.process import module_command

MAX_LOCAL_STAGES = 64
_LISTENING = re.compile(r"listening on (\S+:\d+)")
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.02
_LOOK_S = 0.2  # between two looks at the agents
_LOG_LOOK_S = 2.0  # between two looks at the sizes of their logs
LOG_BYTES = 2 << 20  # of the log of one agent; the older half goes when it is full
_FIRST_S, _MOST_S = 0.5, 60.0  # of a pause before something that has failed is tried again
_STEADY_S = 60.0  # an agent that ran for so long is started again without a pause

Report = Callable[[str, str], None]
"""Called with a name and what happens there."""
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


def shared_threads(cores: int, others: int) -> tuple[int, int]:
    """Return the threads of a computation on a draft node, and on each of `others` agents beside it.

    They compute at the same time, so they share the cores. The draft node has the least to compute: 8 cores
    are 2 threads for it and 6 for a single stage, or 1 for each of 6 stages.
    """
    draft_node = max(1, min(cores // 4, cores // (others + 1)))
    return draft_node, max(1, (cores - draft_node) // max(others, 1))


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
        started: when, on time.monotonic(); starts: how often in short succession.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""
    started: float = field(default_factory=time.monotonic)
    starts: int = 1

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def end(self) -> str:
        """How the process ended: by which signal or with which exit code."""
        code = self.process.returncode
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def last_output_line(self) -> str:
        """Return the last line of its output, which tells why it ended."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


class LocalCluster:
    """Agents on loopback: a draft node, stages, and agents for middle models. No process is left behind.

    Other programs of this machine neither find the agents nor may call them. Each agent
    is a process; together they use the physical cores (see shared_threads). An agent stops when its standard
    input closes, so that it ends with this process, however this process ends.

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
        threads: int | None = None,
        in_one: bool = False,
        command: AgentCommand = agent_command,
    ) -> None:
        """Prepare agents, which `start` starts.

        Args:
            stages, middles: numbers of agents.
            name: the agents are `name`-d0, `name`-v1 and so on, with a random part that makes names unique.
            draft_node: whether there is an agent for the draft node; without it this process has to be it.
            group: under which the agents are announced (see DiscoverySettings); "" for no announcement.
            threads: of each agent's computations; None to share the physical cores.
            in_one: whether the draft node is the only stage as well, in one process.
            command: its agent must say where it listens, as `flowedge agent` does, and stop when its standard
                input closes.
        """
        check_local_stages(stages, middles)
        token = uuid.uuid4().hex[:6]
        roles = [
            *(["d0"] if draft_node else []),
            *(f"v{place + 1}" for place in range(0 if in_one else stages)),
            *(f"m{number + 1}" for number in range(middles)),
        ]
        self._names = [f"{name}-{token}-{role}" for role in roles]
        self._first_stage, self._num_stages = int(draft_node and not in_one), stages
        self._in_one = in_one
        self._start_timeout_s = start_timeout_s
        self._command = command
        self._group = group
        self._threads = threads
        self._logs: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()  # held while agents are started again or stopped
        self._stopping = threading.Event()
        self._background: list[threading.Thread] = []
        self.agents: list[LocalAgent] = []

    @classmethod
    def of_pipeline(cls, stages: int, *, middles: int = 0, name: str = "local") -> LocalCluster:
        """Return the agents of a pipeline; a single stage is the draft node's, in one process."""
        return cls(stages, middles=middles, name=name, in_one=stages == 1 and not middles)

    @property
    def words(self) -> str:
        """The draft node and the stages, for people."""
        stages = counted(self._num_stages, "stage agent")
        return "one agent" if self._in_one else f"a draft node and {stages}"

    @property
    def addresses(self) -> list[str]:
        """Those of the draft node, of the stages, and of the agents for middle models."""
        return [agent.address for agent in (self.draft_node, *self.stages, *self.middles)]

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
        self._stopping.clear()
        try:
            for place, name in enumerate(self._names):
                self.agents.append(
                    _launch(
                        name,
                        self._command(place, name),
                        Path(self._logs.name),
                        self._group,
                        self._threads_at(place),
                    )
                )
            deadline = time.monotonic() + self._start_timeout_s
            for agent in self.agents:
                agent.address = _await_address(agent, deadline, self._start_timeout_s)
            speak_plaintext_to(agent.address for agent in self.agents)
            self._start_thread(self._bound_logs)
        except BaseException:
            self.stop()
            raise

    def _threads_at(self, place: int) -> int:
        """Return the threads of the agent at a place; without a draft node, the caller is it."""
        if self._threads is not None:
            return self._threads
        if self._in_one:
            return physical_cores()
        others = len(self._names) - self._first_stage
        draft_node, other = shared_threads(physical_cores(), others)
        return draft_node if place < self._first_stage else other

    def keep_up(self, report: Report, set_up: Callable[[], object] = lambda: None) -> None:
        """Start agents that end again, until `stop`, each where it has listened.

        An agent that ends again and again is started after growing pauses.

        Args:
            report: is told of each end and start; called in a thread.
            set_up: sets the pipeline up again when all agents run; called in a thread, again after a
                FlowEdgeError.
        """
        self._start_thread(self._keep_up, report, set_up)

    @property
    def logs(self) -> Path:
        """The directory of the agents' logs, each of `LOG_BYTES` at most; it goes when they are stopped."""
        if self._logs is None:
            raise BadRequestError("the agents were not started, so they have no logs")
        return Path(self._logs.name)

    def _start_thread(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="flowedge-local-agents", daemon=True)
        self._background.append(thread)
        thread.start()

    def _bound_logs(self) -> None:
        while not self._stopping.wait(_LOG_LOOK_S):
            for agent in list(self.agents):
                with self._lock:
                    if not self._stopping.is_set():
                        shorten_log(agent.log, LOG_BYTES)

    def _keep_up(self, report: Report, set_up: Callable[[], object]) -> None:
        whole, pause_s, due = True, _FIRST_S, 0.0
        while not self._stopping.wait(_LOOK_S):
            ended = [agent for agent in self.agents if agent.process.poll() is not None]
            whole = whole and not ended
            for agent in ended:
                self._start_again(agent, report)
            if whole or time.monotonic() < due or any(agent.process.poll() is not None for agent in ended):
                continue
            try:
                set_up()
            except FlowEdgeError as error:
                report(
                    "this machine", f"the pipeline is not set up again: {error}; next try in {pause_s:g} s"
                )
                due, pause_s = time.monotonic() + pause_s, min(2 * pause_s, _MOST_S)
            else:
                report("this machine", "all agents run again")
                whole, pause_s = True, _FIRST_S

    def _start_again(self, agent: LocalAgent, report: Report) -> None:
        """Start an agent that has ended, unless it has to wait."""
        now = time.monotonic()
        if now - agent.started > _STEADY_S:
            agent.starts = 0
        pause_s = min(_FIRST_S * 2**agent.starts, _MOST_S) if agent.starts > 1 else 0.0
        if now - agent.started < pause_s:
            return
        report(agent.name, f"its agent {agent.end}, so it is started again")
        place = next(place for place, name in enumerate(self._names) if name == agent.name)
        port = agent.address.rpartition(":")[2]
        command = [*self._command(place, agent.name), "--port", port]
        with self._lock:
            if self._stopping.is_set() or self._logs is None:
                return
            _close_input(agent.process)
            threads = self._threads_at(self._names.index(agent.name))
            fresh = _launch(agent.name, command, Path(self._logs.name), self._group, threads)
            agent.process, agent.started, agent.starts = fresh.process, now, agent.starts + 1
        try:
            _await_address(agent, now + self._start_timeout_s, self._start_timeout_s)
        except FlowEdgeError as error:
            report(agent.name, str(error))

    def stop(self) -> None:
        """Ask all agents to end, and kill those that do not within a few seconds."""
        with self._lock:
            self._stopping.set()
            for agent in self.agents:
                agent.process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for agent in self.agents:
            _reap(agent.process, deadline)
        forget_started_agents(agent.address for agent in self.agents)
        self.agents = []
        for thread in self._background:
            thread.join(_STOP_TIMEOUT_S)
        self._background = []
        if self._logs is not None:
            self._logs.cleanup()
            self._logs = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _launch(name: str, command: list[str], logs: Path, group: str, threads: int) -> LocalAgent:
    log = logs / f"{name}.log"
    log.write_bytes(b"")
    with log.open("ab") as output:  # so that it goes on at the end of a log that is shortened
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "FLOWEDGE_AGENT__THREADS": str(threads),
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


def shorten_log(log: Path, most: int) -> None:
    """Drop the older half of a log of more than `most` bytes; a line written meanwhile may be lost."""
    with log.open("r+b") as file:
        if file.seek(0, os.SEEK_END) <= most:
            return
        file.seek(-(most // 2), os.SEEK_END)
        file.readline()  # the rest of a line
        latest = file.read()
        file.truncate(0)
    with log.open("ab") as file:
        file.write(latest)


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
    _close_input(process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    pipe: IO[bytes] | None = process.stdin
    if pipe is not None:
        pipe.close()
