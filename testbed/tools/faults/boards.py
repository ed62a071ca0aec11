"""Boards on a shelf: agents as processes, each in a network namespace of its own where that is possible."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.client import Client
from flowedge.cluster.process import Security
from flowedge.core.errors import DeadlineError, DeviceError
from flowedge.device.process import module_command
from flowedge_testbed.paced.namespaces import Namespaces
from testbed.tools.faults.disks import fill_disk, flip_bit, free_disk, mount_disk, unmount_disk
from testbed.tools.faults.schedule import CLOCK_S, RESET_SHARE, InjectedFault

PORT = 7070
START_S, END_S = 120.0, 30.0
RESTART_S = 1.0  # after which systemd starts a process again
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)  # Debian's libfaketime
_NOWHERE = "02:00:00:00:00:01"  # a hardware address that no device has


@dataclass
class Board:
    """One device.

    Attributes:
        address: of its agent; command: that starts the agent.
        directory: for its state and its cache.
    """

    name: str
    address: str
    command: list[str]
    log: Path
    environment: dict[str, str]
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its agent."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> None:
        """Send its agent a signal by which it ends, and wait for that."""
        self.signal(number)
        self.wait()

    def step_clock(self, seconds: int) -> None:
        """Have its time of day be another than that of this machine by so many seconds."""
        clock = self.directory / "clock"
        new = clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}", encoding="utf-8")
        new.replace(clock)

    def signal(self, number: signal.Signals) -> None:
        """Send its agent a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self) -> None:
        """Wait until its agent has ended. Raises DeadlineError when it does not."""
        if self.process is None:
            return
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"{self.name} did not end within {END_S:g} s") from None

    def stop(self) -> None:
        """End its agent, for good."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(DeadlineError):
            self.wait()
        self.signal(signal.SIGKILL)


@dataclass
class Shelf:
    """A draft node, stages and spares, which run while the context lasts.

    Attributes:
        clocks: whether their clocks may be stepped.
        pipeline: its model and how that is held; int8, so that each board has files of its own weights.
        deadlines: of the agents, where they are not the default.
    """

    directory: Path
    stages: int
    spares: int
    network: Namespaces | None
    seed: int = 0
    clocks: bool = False
    pipeline: Mapping[str, str] = field(default_factory=lambda: {"model": "bundled", "quant": "int8"})
    deadlines: Mapping[str, float] = field(default_factory=dict)
    boards: dict[str, Board] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __enter__(self) -> Shelf:
        names = ["d0", *(f"v{number + 1}" for number in range(self.stages + self.spares))]
        with contextlib.ExitStack() as stack:
            self._stack = stack
            if self.network is not None:
                stack.enter_context(self.network)
            hosts = ["127.0.0.1"] * len(names) if self.network is None else self.network.hosts
            ports = [PORT + (place if self.network is None else 0) for place in range(len(names))]
            addresses = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
            for place, name in enumerate(names):
                self.boards[name] = self._board(place, name, addresses)
            stack.callback(self._stop)
            for board in self.boards.values():
                board.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def await_answer(self) -> None:
        """Wait until the pipeline answers."""
        security = Security(None, insecure=True)
        with Client(self.boards["d0"].address, security=security, retries=1000) as client:
            client.generate("Hi", max_new_tokens=1, timeout_s=START_S).result()

    def begin(self, fault: InjectedFault) -> None:
        """Have a fault begin."""
        board = self.boards[fault.device]
        match fault.kind:
            case "kill":
                board.end(signal.SIGKILL)
            case "term":
                board.end(signal.SIGTERM)
            case "disk_full":
                fill_disk(board.directory)
                board.end(signal.SIGKILL)
                pause_until(time.monotonic() + RESTART_S)
                board.start()
            case "bit_flip":
                flip_bit(board.directory, self._chance)
                board.end(signal.SIGKILL)
            case "clock":
                board.step_clock(self._chance.choice((-CLOCK_S, CLOCK_S)))
            case "stop":
                board.signal(signal.SIGSTOP)
            case "link":
                self._cable(board, "down")
            case "one_way":
                self._neighbour(board, "replace")
            case "resets":
                self._reset(board)

    def end(self, fault: InjectedFault) -> None:
        """Have a fault end."""
        board = self.boards[fault.device]
        match fault.kind:
            case "kill" | "term" | "bit_flip":
                board.start()
            case "disk_full":
                free_disk(board.directory)
            case "clock":
                board.step_clock(0)
            case "stop":
                board.signal(signal.SIGCONT)
            case "link":
                self._cable(board, "up")
            case "one_way":
                self._neighbour(board, "del")

    def _board(self, place: int, name: str, addresses: Sequence[str]) -> Board:
        settings: dict[str, dict[str, object]] = {
            "agent": {"name": name, "host": addresses[place].partition(":")[0], "advertise": False},
            "metrics": {"enabled": False},
            "deadlines": dict(self.deadlines),
        }
        directory = self.directory / name
        if self.network is None:
            directory.mkdir(exist_ok=True)
        else:
            mount_disk(directory)
            self._stack.callback(unmount_disk, directory)
        settings["cache"] = {"dir": str(directory / "cache")}
        settings["agent"]["port"] = int(addresses[place].rpartition(":")[2])
        if name == "d0":
            stages = list(addresses[1 : 1 + self.stages])
            settings["pipeline"] = {
                **self.pipeline,
                "stages": stages,
                "spares": list(addresses[1 + self.stages :]),
            }
        file = self.directory / f"{name}.toml"
        lines = [
            line
            for section, values in settings.items()
            for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()))
        ]
        file.write_text("\n".join(lines), encoding="utf-8")
        command = [*module_command("flowedge.cli.main"), "agent", "--config", str(file), "--insecure"]
        if self.network is not None:
            command = self.network.enter(place, command)
        environment = {"FLOWEDGE_STATE_DIR": str(directory), "OMP_NUM_THREADS": "1"}
        if self.clocks:
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(directory / "clock"),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_CACHE_DURATION": "1",
            }
        board = Board(name, addresses[place], command, self.directory / f"{name}.log", environment, directory)
        if self.clocks:
            board.step_clock(0)
        return board

    def _stop(self) -> None:
        for board in self.boards.values():
            board.stop()

    def _cable(self, board: Board, state: str) -> None:
        place = [*self.boards].index(board.name)
        self._run(["ip", "link", "set", f"port{place}", state], place=None)

    def _neighbour(self, board: Board, action: str) -> None:
        """Have what a board sends to the next one go to a hardware address that nobody has, or end that."""
        names = [*self.boards]
        place = names.index(board.name)
        other = self.boards[names[(place + 1) % len(names)]].address.partition(":")[0]
        lladdr = ["lladdr", _NOWHERE, "nud", "permanent"] if action == "replace" else []
        self._run(["ip", "neighbour", action, other, *lladdr, "dev", "eth0"], place=place)

    def _reset(self, board: Board) -> None:
        """Reset a share of a board's connections.

        Raises:
            DeviceError: when the kernel cannot.
        """
        place = [*self.boards].index(board.name)
        listed = ["ss", "-Htn", "state", "established"]
        open_ = [tuple(line.split()[-2:]) for line in self._run(listed, place).splitlines()]
        chosen = self._chance.sample(open_, math.ceil(RESET_SHARE * len(open_)))
        for own, peer in chosen:
            self._run(["ss", "-KHtn", "src", own, "dst", peer], place)
        left = {tuple(line.split()[-2:]) for line in self._run(listed, place).splitlines()}
        if chosen and left.issuperset(chosen):
            raise DeviceError(
                "the network of this machine",
                "its kernel resets no connection (CONFIG_INET_DIAG_DESTROY): leave resets out of --kinds",
            )

    def _run(self, command: list[str], place: int | None) -> str:
        assert self.network is not None, "faults of links are drawn with a network alone"
        entered = self.network.enter_bridge(command) if place is None else self.network.enter(place, command)
        done = subprocess.run(entered, capture_output=True, text=True, timeout=10.0, check=False)
        if done.returncode:
            raise DeviceError("the network of this machine", f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def pause_until(moment: float) -> None:
    """Sleep until a moment of time.monotonic()."""
    time.sleep(max(moment - time.monotonic(), 0.0))
