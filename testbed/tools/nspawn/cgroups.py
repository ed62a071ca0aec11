"""A control group for each host: systemd-nspawn runs a host below the group that it is started in."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The hierarchies that systemd keeps units in: that of version 2, and "systemd" where there are both."""
    if (_ROOT / "cgroup.controllers").exists():
        roots = [_ROOT]
    else:
        roots = [root for root in (_ROOT / "unified", _ROOT / "systemd") if (root / "cgroup.procs").exists()]
    return roots if all(os.access(root, os.W_OK) for root in roots) else []


def make(name: str) -> list[Path]:
    """The files that a process writes its id to, to be in the group `name` of every hierarchy."""
    groups = [root / name for root in hierarchies()]
    for group in groups:
        group.mkdir(parents=True)
    return [group / "cgroup.procs" for group in groups]


def remove(name: str) -> None:
    """Remove the groups `name` and all below. No process may be in them. Harmless when there are none."""
    for root in hierarchies():
        group = root / name
        below = sorted(group.rglob("*/"), reverse=True) if group.exists() else []
        for directory in [*below, *([group] if group.exists() else [])]:
            directory.rmdir()
