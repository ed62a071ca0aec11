"""Whole commands in a home of their own: what they print, how they end, which processes they start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forked_python import LIGHT
from tests.support.processes import CLI

DEADLINE_S = 60.0
STEP_S = 0.05
STOP_S = 5.0

# Python runs this module at its start, and a forked process does, too, which begins without torch. So every
# Python process of a command tells its command line in a file, and at its end whether it imported torch.
_WITNESS = """
import atexit, json, os, sys

def tell(**facts):
    with open(os.environ["FLOWEDGE_TEST_WITNESS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"pid": os.getpid(), **facts}) + "\\n")

tell(command=sys.orig_argv)
atexit.register(lambda: tell(torch="torch" in sys.modules))
"""


@dataclass(frozen=True)
class EndedCommand:
    """A command that has ended.

    Attributes:
        code: exit code; negative for a signal.
        started: the command lines of all its Python processes, its own first.
        torch: whether a process imported torch, or was killed before it told.
    """

    code: int
    stdout: str
    stderr: str
    started: tuple[tuple[str, ...], ...]
    torch: bool

    @property
    def complaint(self) -> str:
        """The only line on stderr, without the name of the program in front.

        Raises:
            AssertionError: when stderr has another number of lines, or the line has another beginning.
        """
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("flowedge: "), self.stderr
        return lines[0].removeprefix("flowedge: ")


@dataclass(frozen=True)
class UserHome:
    """A user's home directory, in which commands run. They see no settings of the user who runs the tests.

    Attributes:
        columns: width of the terminal that commands believe in.
    """

    path: Path
    columns: int = 80

    def flowedge(
        self, *arguments: str | bytes, stdin: bytes = b"", alone: bool = False, deadline_s: float = DEADLINE_S
    ) -> EndedCommand:
        """Run a `flowedge` command to its end.

        Args:
            alone: whether the command is killed as soon as it has started another Python process.

        Raises:
            TimeoutError: when it takes longer than `deadline_s` seconds; it is killed.
        """
        return self._run([*CLI, *arguments], stdin, alone=alone, deadline_s=deadline_s)

    def python(self, code: str, *, deadline_s: float = DEADLINE_S) -> EndedCommand:
        """Run a Python program of the user's, as `flowedge` runs a command."""
        return self._run([sys.executable, "-c", code], b"", alone=False, deadline_s=deadline_s)

    def _run(
        self, command: Sequence[str | bytes], stdin: bytes, *, alone: bool, deadline_s: float
    ) -> EndedCommand:
        with tempfile.TemporaryDirectory(prefix="walk-") as scratch:
            witness = Path(scratch, "witness.jsonl")
            witness.touch()
            Path(scratch, "sitecustomize.py").write_text(_WITNESS, encoding="utf-8")
            paths = {name: Path(scratch, name) for name in ("in", "out", "err")}
            paths["in"].write_bytes(stdin)
            with (
                paths["in"].open("rb") as given,
                paths["out"].open("wb") as out,
                paths["err"].open("wb") as err,
            ):
                process = subprocess.Popen(
                    command,
                    stdin=given,
                    stdout=out,
                    stderr=err,
                    cwd=self.path,
                    env=self._environment(scratch, witness),
                    start_new_session=True,
                )
                code = _ended(process, witness, alone, deadline_s)
            facts = _facts(witness)
            without_torch = {entry["pid"] for entry in facts if entry.get("torch") is False}
            return EndedCommand(
                code,
                paths["out"].read_text(encoding="utf-8", errors="backslashreplace"),
                paths["err"].read_text(encoding="utf-8", errors="backslashreplace"),
                tuple(tuple(entry["command"]) for entry in facts if "command" in entry),
                any(entry["pid"] not in without_torch for entry in facts),
            )

    def _environment(self, scratch: str, witness: Path) -> dict[str, str]:
        """Return the variables of this process, with no setting of FlowEdge but those of this home."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOWEDGE_")}
        imported = [
            str(Path(entry).absolute())
            for entry in sys.path
            for package in ("flowedge", "flowedge_testbed")
            if Path(entry, package).is_dir()
        ]
        return {
            **kept,
            "HOME": str(self.path),
            "XDG_CACHE_HOME": str(self.path / ".cache"),
            "XDG_CONFIG_HOME": str(self.path / ".config"),
            "FLOWEDGE_STATE_DIR": str(self.path / ".flowedge"),
            "HF_HOME": str(self.path / ".cache" / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": str(self.columns),
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([scratch, *imported])),
            "FLOWEDGE_TEST_WITNESS": str(witness),
            LIGHT: "yes",
        }


def _ended(process: subprocess.Popen[bytes], witness: Path, alone: bool, deadline_s: float) -> int:
    """Wait for the end of a command, and return its exit code."""
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(STEP_S)
        if alone and len({entry["pid"] for entry in _facts(witness)}) > 1:
            break
    _kill_session(process)
    if not alone or len({entry["pid"] for entry in _facts(witness)}) < 2:
        raise TimeoutError(f"{process.args!r} ran for more than {deadline_s} s")
    return process.returncode


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Ask a command and the processes of its group to end, then kill what is left."""
    for name in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def _facts(witness: Path) -> list[dict[str, Any]]:
    """Return what the processes have told so far; a line that is not whole yet is left out."""
    text = witness.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
