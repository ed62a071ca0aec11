"""The launcher of processes: every test starts its agents here, and none is left behind.

A process runs the `flowedge` command. It is forked from a process that has its imports already, because these
take seconds in each agent (see fork_server.py). So is whatever tests start by CLI, and the agents that such a
command starts. A process whose imports are measured is started from nothing instead, by COLD_CLI.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import psutil

from flowedge.core.pipeline_config import PipelineConfig
from flowedge.v1 import agent_pb2 as pb
from flowedge.v1 import agent_pb2_grpc as rpc
from flowedge.version import PROTOCOL_VERSION
from tests.support.forked_python import ask

START_S = 120.0
STOP_S = 20.0
LOAD_S = 240.0
PROGRAMS = Path(tempfile.gettempdir(), f"flowedge-tests-{uuid.uuid4().hex[:12]}")  # `python` and `flowedge`
CLI = [str(PROGRAMS / "python"), "-m", "flowedge.cli.main"]
COLD_CLI = [sys.executable, "-m", "flowedge.cli.main"]
_LISTENING = re.compile(r"listening on (\S+:\d+)")

Enter = Callable[[Sequence[str]], list[str]]
"""Returns the command that runs a command in another network namespace."""


class _Handle(Protocol):
    """A started process."""

    @property
    def pid(self) -> int: ...

    def exit_code(self, timeout_s: float) -> int | None: ...

    def close_input(self) -> None: ...


class FlowEdgeProcess:
    """A `flowedge` command as a process.

    Attributes:
        environment: variables that are set for the process, beside those of this process.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        enter: Enter | None = None,
        fresh: bool = False,
        command: Sequence[str] = CLI,
    ) -> None:
        """Prepare a process, which `start` starts.

        Args:
            arguments: of the command.
            enter: given for a process in another network namespace.
            fresh: do not fork; import everything anew.
            command: the program; another than `flowedge` may inject a fault.
        """
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self._enter = enter
        self._command = list(command)
        if fresh:
            self._command = COLD_CLI
        self._forked = enter is None and self._command == CLI
        self._log = Path(tempfile.mkstemp(prefix="flowedge-", suffix=".log")[1])
        self._handle: _Handle | None = None
        self._started_at = 0  # the number of lines before the last start
        self._seen = 0  # the number of lines that `next_line` has passed
        self.address = ""

    def start(self) -> None:
        """Start the process; `await_address` and `line` wait for its output."""
        self._started_at = len(self.lines)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **self.environment}
        if self._forked:
            self._handle = _Forked(self.arguments, environment, self._log)
        else:
            command = [*self._command, *self.arguments]
            self._handle = _Spawned(self._enter(command) if self._enter else command, environment, self._log)
        _running.append(self)

    def await_address(self) -> str:
        """Wait until the process says where it listens, and return the address."""
        found = _LISTENING.search(self.line("listening on ", after=self._started_at))
        assert found is not None
        self.address = found.group(1)
        return self.address

    @property
    def pid(self) -> int:
        assert self._handle is not None, "it has not been started"
        return self._handle.pid

    @property
    def lines(self) -> list[str]:
        """The lines that all starts have written to stdout and stderr."""
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def line(self, *texts: str, after: int = 0) -> str:
        """Wait for a line with all these texts, from line number `after` on, and return it."""
        return self._find(texts, after)[1]

    def next_line(self, *texts: str) -> str:
        """Return the next line with all these texts, after the line that the last call returned."""
        number, line = self._find(texts, self._seen)
        self._seen = number + 1
        return line

    def _find(self, texts: Sequence[str], after: int) -> tuple[int, str]:
        deadline = time.monotonic() + START_S
        while True:
            running = self.running  # asked first, so that the log is complete if the process has ended
            lines = self.lines
            for number, line in enumerate(lines[after:], start=after):
                if all(text in line for text in texts):
                    return number, line
            assert running, f"the process ended: {lines}"
            assert time.monotonic() < deadline, f"no line with {texts} in {lines}"
            time.sleep(0.02)

    @property
    def running(self) -> bool:
        return self._handle is not None and self._handle.exit_code(0) is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait for the end of the process, and return its exit code: -n after signal n."""
        assert self._handle is not None, "it has not been started"
        code = self._handle.exit_code(timeout_s)
        assert code is not None, f"the process did not end within {timeout_s:g} s: {self.lines}"
        return code

    def kill(self) -> None:
        """End the process by SIGKILL, if it runs."""
        if self.running:
            self.signal(signal.SIGKILL)
            self.wait()
        self._forget()

    def stop(self) -> None:
        """End the process as systemd does, by SIGTERM, if it runs."""
        self.request_stop()
        try:
            if self._handle is not None:
                self.wait()
        finally:
            self.kill()

    def request_stop(self) -> None:
        """Send SIGTERM, also to a process that has been stopped by a signal."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)

    def remove(self) -> None:
        """Remove the log of a process that has ended; its lines are gone then."""
        assert not self.running
        self._log.unlink()

    def _forget(self) -> None:
        if self._handle is not None:
            self._handle.close_input()
            _running.remove(self)
            self._handle = None


class AgentProcess(FlowEdgeProcess):
    """An agent on loopback, or in a network namespace; it reads no configuration file.

    Attributes:
        settings: its settings by section, for the next start.
    """

    def __init__(
        self,
        name: str,
        *options: str,
        port: int = 0,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        **launch: Any,
    ) -> None:
        """Prepare an agent with command line options.

        Args:
            name: if "", the agent has the name that its certificate gives.
            port: to listen on at the first start; 0 for a free one.
            launch: as in FlowEdgeProcess.
        """
        super().__init__(**launch)
        self._port = port
        self.name, self.options = name, options
        self.settings = {section: dict(values) for section, values in (settings or {}).items()}
        self._given = dict(self.environment)

    def start(self) -> None:
        """Start the agent, on the port of its last start if there was one."""
        port = self.address.rpartition(":")[2] or self._port
        place = ["--port", str(port), *(["--name", self.name] if self.name else [])]
        self.arguments = ["agent", "--config", os.devnull, *place, "--exit-with-parent", *self.options]
        self.environment = {**_variables(self.settings), **self._given}
        super().start()

    def describe(self, timeout_s: float = 20.0) -> pb.Device:
        """Return the agent's description of itself."""
        with grpc.insecure_channel(self.address) as channel:
            device: pb.Device = rpc.AgentStub(channel).Describe(pb.DescribeRequest(), timeout=timeout_s)
        return device

    def samples(self, timeout_s: float = 20.0) -> dict[str, float]:
        """Return the samples of the agent's metrics, by name and labels."""
        (address,) = {line.rsplit(" ", 1)[1].strip() for line in self.lines if "serves metrics at" in line}
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:
            lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def resident_bytes(self) -> int:
        """Return the memory of the process, as the system counts it."""
        return int(psutil.Process(self.pid).memory_info().rss)


def start_all(processes: Sequence[FlowEdgeProcess]) -> None:
    """Start processes at once and wait until all of them listen."""
    for process in processes:
        process.start()
    for process in processes:
        process.await_address()


@contextlib.contextmanager
def running(*processes: FlowEdgeProcess) -> Iterator[None]:
    """Start processes at once; all of them have ended when the context ends."""
    try:
        start_all(processes)
        yield
    finally:
        for process in processes:
            process.request_stop()
        for process in processes:
            process.stop()
        for process in processes:
            process.remove()


@contextlib.contextmanager
def agents(
    names: Sequence[str],
    *options: str,
    advertise: bool = False,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **launch: Any,
) -> Iterator[list[AgentProcess]]:
    """Agents that serve; all of them have ended when the context ends.

    Args:
        options, settings, launch: of all of them, as in AgentProcess.
    """
    told = ["--advertise" if advertise else "--no-advertise", *options]
    made = [AgentProcess(name, *told, settings=settings, **launch) for name in names]
    with running(*made):
        yield made


def become_pipeline(
    agents_: Sequence[AgentProcess], *, drafter: str = "bundled", pipeline: str = "test"
) -> None:
    """Make the first agent the draft node of the others, with the bundled model."""
    role = pb.DraftNodeRole(
        pipeline=pipeline,
        config=PipelineConfig(drafter=drafter, dtype="float32").to_json(),
        stages=[agent.address for agent in agents_[1:]],
        protocol_version=PROTOCOL_VERSION,
    )
    with grpc.insecure_channel(agents_[0].address) as channel:
        last = list(rpc.AgentStub(channel).BecomeDraftNode(role, timeout=LOAD_S))[-1]
    assert last.ready


def left_behind() -> list[str]:
    """Return the processes that run still: started here, or by the product."""
    started = [f"{process.arguments} ({process.pid})" for process in _running if process.running]
    children = psutil.Process().children(recursive=True)
    return started + [
        str(child)
        for child in children
        if child.status() != psutil.STATUS_ZOMBIE and "flowedge.cli.main" in child.cmdline()
    ]


_running: list[FlowEdgeProcess] = []


class _Spawned:
    """A process that starts from nothing."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        self.pid = self._process.pid

    def exit_code(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s) if timeout_s else self._process.poll()
        except subprocess.TimeoutExpired:
            return None

    def close_input(self) -> None:
        """Close it once nobody reads it: an agent forked for a program that was killed would end in order."""
        assert self._process.stdin is not None
        readers = select.poll()
        readers.register(self._process.stdin, 0)  # tells of an error alone: the end of the last reader
        assert readers.poll(STOP_S * 1000), "a process that was started by one that has ended still runs"
        self._process.stdin.close()


class _Forked:
    """A process that is forked from the one with the imports."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        theirs, self._input = os.pipe()
        with log.open("ab") as output:
            streams = [theirs, output.fileno(), output.fileno()]
            self._link, self.pid = ask(str(PROGRAMS), [*CLI, *arguments], dict(environment), streams)
        os.close(theirs)
        assert self.pid, "the server of forked processes has ended"
        self._code: int | None = None

    def exit_code(self, timeout_s: float) -> int | None:
        if self._code is None and select.select([self._link], [], [], timeout_s)[0]:
            self._code = os.waitstatus_to_exitcode(int.from_bytes(self._link.recv(4), "big"))
            self._link.close()
        return self._code

    def close_input(self) -> None:
        os.close(self._input)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Make the programs of CLI, which work while the context lasts."""
    PROGRAMS.mkdir(mode=0o700)
    listeners = [socket.socket(socket.AF_UNIX) for _ in ("light", "torch")]
    for listener, name in zip(listeners, ("light", "torch"), strict=True):
        listener.bind(str(PROGRAMS / name))
        listener.listen(64)
    stand_in = Path(__file__).with_name("forked_python.py").read_text(encoding="utf-8")
    python, flowedge = PROGRAMS / "python", PROGRAMS / "flowedge"
    python.write_text(f"#!{sys.executable} -IS\n{stand_in}", encoding="utf-8")
    flowedge.write_text(f'#!/bin/sh\nexec {" ".join(CLI)} "$@"\n', encoding="utf-8")
    for program in (python, flowedge):
        program.chmod(0o700)
    numbers = [listener.fileno() for listener in listeners]
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py")), *map(str, numbers)],
        stdin=subprocess.PIPE,
        pass_fds=numbers,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        for listener in listeners:
            listener.close()
        yield
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(STOP_S)
        shutil.rmtree(PROGRAMS)


def _variables(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return settings as environment variables, FLOWEDGE_SECTION__KEY."""
    return {
        f"FLOWEDGE_{section}__{key}".upper(): value if isinstance(value, str) else json.dumps(value)
        for section, values in settings.items()
        for key, value in values.items()
    }
