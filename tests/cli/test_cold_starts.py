"""Cold starts of commands. Other tests fork commands from a process that has their imports (fork_server.py).

Cold are three starts here, one that runs many commands (test_light_imports.py), one whose declarations are
others (test_one_line.py), the agent of
tests/agent/test_idle.py, one that gRPC logs for (tests/cluster/test_attacks.py), `flowedge generate` and
its agents in tests/walk/test_real_model.py, and `make demo`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowedge.cli.main import COMMANDS
from tests.support.commands import run_command
from tests.support.processes import CLI, COLD_CLI

HEAVY = {"torch", "transformers", "bitsandbytes"}

# Python runs this module at its start.
PROBE = """
import atexit, json, os, signal, sys, threading

def stream(stream):
    return [stream.fileno(), stream.isatty(), stream.encoding, stream.errors, stream.line_buffering]

def facts():
    return {
        "orig_argv": sys.orig_argv[1:],
        "streams": [stream(each) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals()
                    if isinstance(number, signal.Signals)},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
        "directory": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if name != "PROBED"},
        "threads": threading.active_count(),
    }

def end():
    import logging
    root = logging.getLogger()
    told = {
        **start,
        "arguments": sys.argv[1:],
        "handlers": [[type(each).__name__, each.stream is sys.stderr] for each in root.handlers],
        "level": root.level,
        "hook": sys.excepthook.__name__,
        "modules": sorted(sys.modules),
    }
    with open(os.environ["PROBED"], "w") as file:
        json.dump(told, file)

start = facts()
atexit.register(end)
"""


def probed(
    cli: Sequence[str], directory: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run a command; return what it left, and what PROBE told of its process."""
    (directory / "sitecustomize.py").write_text(PROBE, encoding="utf-8")
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    told = directory / "told.json"
    done = run_command(
        [*cli, *arguments],
        input="",
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "PROBED": str(told), "GRPC_VERBOSITY": "NONE"},
    )
    return done, json.loads(told.read_text(encoding="utf-8"))


def test_help_lists_the_commands_and_imports_none(tmp_path: Path) -> None:
    done, facts = probed(COLD_CLI, tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in COMMANDS)
    assert not [name for name in facts["modules"] if name.startswith("flowedge.cli.commands.")]
    assert not {*HEAVY, "grpc"} & set(facts["modules"])


def test_the_devices_are_asked_without_torch(tmp_path: Path) -> None:
    done, facts = probed(COLD_CLI, tmp_path, "devices", "--peers", "127.0.0.1:1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "connection failed" in done.stdout
    assert not HEAVY & set(facts["modules"])


def test_a_forked_command_is_as_a_cold_one(tmp_path: Path) -> None:
    outcomes = []
    for cli in (COLD_CLI, CLI):
        done, facts = probed(cli, tmp_path, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, "flowedge 0.1.0\n", "")
        modules = set(facts.pop("modules"))
        outcomes.append(facts)
    assert outcomes[0] == outcomes[1]
    commands = {entry.target.partition(":")[0] for entry in COMMANDS.values()}
    assert commands < modules, "all commands have been imported"
    assert not HEAVY & modules
