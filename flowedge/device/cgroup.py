"""Memory limits of the control groups of this process, of cgroup version 2 and version 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class CgroupMemory:
    """A control group that limits memory, in bytes; cached files do not count as used."""

    path: str
    limit: int
    used: int


@dataclass(frozen=True)
class _Files:
    limits: tuple[str, ...]  # the least of their values counts
    used: str
    cached: str  # line of memory.stat that counts cached files, with the groups below


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")


def cgroup_memory(root: Path = Path("/")) -> list[CgroupMemory]:
    """Return the control groups of this process that limit memory, up to the uppermost visible group.

    root: directory with /proc and /sys.
    """
    found: list[CgroupMemory] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _above(root / "sys/fs/cgroup", path, _V2)
        elif "memory" in controllers.split(","):
            found += _above(root / "sys/fs/cgroup/memory", path, _V1)
    return found


def _above(mount: Path, path: str, files: _Files) -> Iterator[CgroupMemory]:
    """In a container the path may be the host's, of which only the mount itself is visible."""
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
    """Return None for "max", and for a missing file: the uppermost group of version 2 has no limits."""
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _cached(folder: Path, name: str) -> int:
    lines = _text(folder / "memory.stat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


def _text(file: Path) -> str:
    """Return the content of a file, empty where there is no such file, as on systems other than Linux."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
