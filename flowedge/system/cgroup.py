"""What the control groups that a process is in leave it of memory, of version 2 and of version 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class CgroupMemory:
    """One group that limits memory; bytes. Files that are kept for being read again do not count as used."""

    path: str
    limit: int
    used: int


@dataclass(frozen=True)
class _Files:
    limits: tuple[str, ...]  # the least of these counts
    used: str
    cached: str  # line of memory.stat, with everything below the group


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")


def cgroup_memory(root: Path = Path("/")) -> list[CgroupMemory]:
    """The groups that this process is in, up to the uppermost there is to see, as far as they limit memory.

    root: where /proc and /sys are found.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    found: list[CgroupMemory] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _above(root / "sys/fs/cgroup", path, _V2)
        elif "memory" in controllers.split(","):
            found += _above(root / "sys/fs/cgroup/memory", path, _V1)
    return found


def _above(mount: Path, path: str, files: _Files) -> Iterator[CgroupMemory]:
    """In a container the path may be one of the host, of which only the mount itself is to be seen."""
    inside = PurePosixPath(path.lstrip("/"))
    for group in (inside, *inside.parents):
        if ".." in group.parts:
            continue
        memory = _read(mount / group, f"/{group}" if group.parts else "/", files)
        if memory is not None:
            yield memory


def _read(folder: Path, path: str, files: _Files) -> CgroupMemory | None:
    limits = [limit for name in files.limits if (limit := _number(folder / name)) is not None]
    used = _number(folder / files.used)
    if not limits or used is None:
        return None
    return CgroupMemory(path, min(limits), max(used - _cached(folder, files.cached), 0))


def _number(file: Path) -> int | None:
    """None for "max", and where there is no such file: the uppermost group of version 2 has none."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cached(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
