"""Memory, disk and systemd of this device."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import psutil

from flowedge.doctor.checks.agents import UNITS, UnitFacts, unit_facts
from flowedge.doctor.checks.memory import DiskFacts, MemoryFacts
from flowedge.system.memory_room import read_available_memory

_SYSTEMD = Path("/run/systemd/system")
_FIELDS = "Id,LoadState,ActiveState,Result,NRestarts"
_ANSWER_S = 10.0


def memory_facts(device: str) -> MemoryFacts:
    """As the system counts it."""
    room = read_available_memory()
    return MemoryFacts(device, room.total, room.available, int(psutil.swap_memory().used))


def disk_facts(directory: Path, limit: int) -> DiskFacts:
    """Of the file system that a directory is on, or would be; files that we may not see count as none."""
    there = next(parent for parent in (directory, *directory.parents) if os.access(parent, os.F_OK))
    used = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                used += (Path(folder) / file).stat().st_size
    return DiskFacts(str(directory), shutil.disk_usage(there).free, limit, used)


def unit() -> UnitFacts:
    """The agent's unit, as systemd sees it; without systemd, as if it were not installed."""
    systemctl = shutil.which("systemctl")
    if systemctl is None or not _SYSTEMD.is_dir():
        return UnitFacts(installed=False)
    command = [systemctl, "show", *UNITS, f"--property={_FIELDS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return UnitFacts(
            installed=True, active="failed", result=f"systemctl did not answer in {_ANSWER_S:g} s"
        )
    return unit_facts(done.stdout)
