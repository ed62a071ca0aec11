"""A control group for each host: systemd-nspawn runs a host below the group that it is started in."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """Return the control group hierarchies that systemd keeps units in.

    That is the hierarchy of version 2, and the one named "systemd" on machines that have both versions.
    """
    if (_ROOT / "cgroup.controllers").exists():
        roots = [_ROOT]
    else:
        roots = [root for root in (_ROOT / "unified", _ROOT / "systemd") if (root / "cgroup.procs").exists()]
    return roots if all(os.access(root, os.W_OK) for root in roots) else []


def make(name: str) -> list[Path]:
    """Make the group `name` in every hierarchy.

    Returns the files to which a process writes its id to join the group.
    """
    groups = [root / name for root in hierarchies()]
    for group in groups:
        group.mkdir(parents=True)
    return [group / "cgroup.procs" for group in groups]


def remove(name: str) -> None:
    """Remove the group `name` and all groups below it, if they exist. No process may be in them."""
    for root in hierarchies():
        group = root / name
        below = sorted(group.rglob("*/"), reverse=True) if group.exists() else []
        for directory in [*below, *([group] if group.exists() else [])]:
            directory.rmdir()
