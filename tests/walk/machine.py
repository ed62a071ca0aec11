"""A machine of a new user: a home of its own, a shell, and perhaps a network namespace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.commands import run_command
from tests.support.processes import PROGRAMS

DEADLINE_S = 120.0
# Variables that a new user does not have; pytest-xdist sets COLUMNS.
_OTHERS = ("FLOWEDGE_", "XDG_", "COLUMNS")
_SCRIPTS = (str(PROGRAMS), str(Path(sys.executable).parent))


Entering = Callable[[Sequence[str]], list[str]]
"""Returns the command that runs a command in the network namespace of the machine."""


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class UserMachine:
    """Runs lines of a shell as its user types them.

    Attributes:
        home: the user's directory, in which commands run and which holds the state and caches.
        environment: further variables.
        cold: whether each command imports everything anew; otherwise it is forked from a process that has.
    """

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    enter: Entering = list
    cold: bool = False

    def run(self, line: str, typed: str = "", *, deadline_s: float = DEADLINE_S) -> Finished:
        """Run a line to its end; `typed` is its standard input."""
        done = run_command(
            self._command(line), input=typed, timeout=deadline_s, cwd=self.home, env=self.variables()
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def works(self, line: str, typed: str = "") -> Finished:
        """Run a line that has to succeed."""
        done = self.run(line, typed)
        assert done.code == 0, f"{line}: {done}"
        return done

    @contextmanager
    def running(self, line: str, until: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a line in the background while the context lasts, which begins when its output has a text.

        The process that is yielded leads a group of its own, as that of a command in a terminal does.
        """
        log = self.home / f"background-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self._command(line),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.home,
                env=self.variables(),
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + DEADLINE_S
            while until not in log.read_text(errors="replace"):
                assert process.poll() is None, f"{line} ended: {log.read_text(errors='replace')}"
                assert time.monotonic() < deadline, f"{line} has not said {until!r}: {log.read_text()}"
                time.sleep(0.05)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _command(self, line: str) -> list[str]:
        return self.enter(["bash", "-c", line])

    def left(self) -> list[str]:
        """Return the command lines of the processes that run with the home of this user."""
        mark = f"HOME={self.home}".encode()
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # no process, or it has ended
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def variables(self) -> dict[str, str]:
        """Return the environment of the user's commands."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
        path = os.pathsep.join([*_SCRIPTS[self.cold :], os.environ["PATH"]])
        own = {"HOME": str(self.home), "PATH": path, "OMP_NUM_THREADS": "1"}
        return {**kept, **own, **self.environment}
