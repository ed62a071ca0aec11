"""Hosts that boot systemd: the proof as a whole, and that nothing is left however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowedge.core.errors import ProtocolError
from testbed.tools.nspawn import journal
from testbed.tools.nspawn.possible import why_not

PROOF_S = 1500  # on a machine that does much else; minutes on one that does not
BOOT_S = 120
END_S = 60
HOST = "tests.testbed.tools.nspawn_host"
START = f"""
import sys
from testbed.tools.nspawn.enclosure import run_enclosed
run_enclosed({HOST!r}, sys.argv[1:])
"""


@pytest.fixture(scope="module")
def bootable() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"NOT PROVEN ON SYSTEMD: hosts cannot be booted on this machine: {reason}")


def traces() -> set[str]:
    """Return the traces that a host leaves: processes, mounts, links, control groups, directories."""
    # Networks of other tests (flowedge_testbed.paced.namespaces) have links with names that begin with fe.
    links = (str(link) for link in Path("/sys/class/net").iterdir() if not link.name.startswith("fe"))
    commands = (read(entry / "cmdline") for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {
        *Path("/proc/self/mounts").read_text().splitlines(),
        *links,
        *map(str, Path(tempfile.gettempdir()).glob("flowedge-nspawn-*")),
        *map(str, Path("/sys/fs/cgroup").glob("**/flowedge-nspawn-*")),
        *map(str, Path("/run/systemd").rglob("*")),
        *(command.decode() for command in commands if b"flowedge-nspawn-" in command),
    }


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


@contextmanager
def booted_host(kind: str) -> Iterator[subprocess.Popen[str]]:
    """Boot a host of a kind that nspawn_host.py knows; yield the process that holds it."""
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    command = ["env", "--default-signal=INT", sys.executable, "-c", START, kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "booted running\n"
        yield process
    finally:
        process.kill()
        process.wait(END_S)
        process.stdout.close()


@pytest.mark.parametrize(("kind", "number"), [("idle", signal.SIGINT), ("board", signal.SIGKILL)])
def test_a_host_boots_and_nothing_is_left_when_it_is_killed(
    bootable: None, kind: str, number: signal.Signals
) -> None:
    """The board first runs install.sh, starts the agent as a service and runs uninstall.sh."""
    before = traces()
    with booted_host(kind) as process:
        booted = traces() - before
        assert any("systemd-nspawn" in trace for trace in booted)
        assert any("cgroup" in trace for trace in booted)
        if kind == "board":
            assert process.stdout is not None
            assert process.stdout.readline() == "uninstalled\n"
        process.send_signal(number)
        process.wait(END_S)
        deadline = time.monotonic() + END_S
        while (left := traces() & booted) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left


@pytest.mark.proof(block=4)
@pytest.mark.timeout(PROOF_S)
def test_boards_install_join_find_each_other_answer_and_recover(bootable: None) -> None:
    before = traces()
    done = subprocess.run(
        [sys.executable, "-m", "testbed.tools.nspawn"],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "everything was shown" in done.stdout
    assert not [trace for trace in traces() - before if "flowedge-nspawn-" in trace]


def entry(**fields: object) -> str:
    return json.dumps({"MESSAGE": json.dumps({"ts": "", "level": "info", "message": "", **fields})})


def test_journals_are_read() -> None:
    lines = [
        entry(event="session_closed", reason="length", request="a"),
        entry(event="session_closed", reason="the client went away", request="b"),
        entry(level="error"),
        entry(level="warning", exception="Traceback"),
    ]
    entries = journal.parse("board1", "\n".join(lines))
    assert journal.answered(entries) == ["a"]
    assert journal.requests(entries) == {"a", "b"}
    assert journal.errors(entries) == entries[2:]


@pytest.mark.parametrize("message", ["listening on 0.0.0.0", "7", '{"level": "info"}', None, [1, 2]])
def test_a_line_that_is_no_event_is_found(message: object) -> None:
    with pytest.raises(ProtocolError, match="board1 logged a line that is no"):
        journal.parse("board1", json.dumps({"MESSAGE": message}))
