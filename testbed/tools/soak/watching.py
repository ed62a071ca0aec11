"""What the processes of a soak hold, sampled beside the requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

_MIB = 1 << 20


@dataclass(frozen=True)
class Held:
    """What a process held at a time.

    Attributes:
        at: seconds since the soak began.
        rss: MiB.
        pss: MiB, where memory that several processes have is divided among them.
    """

    at: float
    rss: float
    pss: float
    descriptors: int
    threads: int


@dataclass
class Watch:
    """Samples the processes in a thread until it is ended.

    Attributes:
        processes: their ids by the names that the report gives them.
        samples: of each process, in the order of time.
        gone: names of the processes that ended meanwhile.
    """

    processes: Mapping[str, int]
    every_s: float
    samples: dict[str, list[Held]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.samples = {name: [] for name in self.processes}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for name, pid in self.processes.items():
                try:
                    self.samples[name].append(held_by(pid, time.monotonic() - self._began))
                except psutil.NoSuchProcess:
                    self.gone.add(name)
            if self._ended.wait(self.every_s):
                return


def held_by(pid: int, at: float) -> Held:
    """Return what a process holds now, which is the time `at`.

    Raises:
        psutil.NoSuchProcess: when the process has ended.
    """
    process = psutil.Process(pid)
    with process.oneshot():
        memory = process.memory_full_info()
        return Held(at, memory.rss / _MIB, memory.pss / _MIB, process.num_fds(), process.num_threads())


def processes_of(gateway: int) -> dict[str, int]:
    """Return the ids of a gateway and of the agents that it started, by "gateway", "d0", "v1" and so on."""
    found = {"gateway": gateway}
    for child in psutil.Process(gateway).children(recursive=True):
        command = child.cmdline()
        if "--name" in command:
            found[command[command.index("--name") + 1].rpartition("-")[2]] = child.pid
    return found
