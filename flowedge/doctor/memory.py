"""Whether devices have free memory, and this device free disk space."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from flowedge.device.memory import read_available_memory
from flowedge.doctor.finding import WARNING, Finding

LOW_SHARE = 0.1
BLOCK_SHARE = 0.5  # of the free memory, which has to be had as one block
LOW_BYTES = 512 << 20
SWAP_BYTES = 64 << 20

MEMORY_LOW = WARNING(
    "memory-low",
    "less than a tenth of a device's memory, or than 512 MiB, is free",
    "Stop what else runs there (a desktop takes 1 GiB: systemctl set-default multi-user.target), or free the "
    "agent with flowedge release.",
)
SWAP_USED = WARNING(
    "swap-used",
    "this device keeps memory in swap, which makes a layer's time uneven",
    "Give the device a smaller block, or stop other programs; then swapoff -a and swapon -a bring it back.",
)
DISK_LOW = WARNING(
    "disk-low",
    "the disk has less room than the cache of quantised weights may take",
    "Make room, name another disk in cache.dir, or lower cache.gib.",
)
IN_PIECES = WARNING(
    "memory-in-pieces",
    "less than half of the free memory can be had as one block, so that a large weight cannot be loaded",
    "On a Jetson (NvMap's error 12), restart the device and load the model first. Elsewhere look at the "
    "limit of the process (ulimit -v), at vm.overcommit_memory, and at what else uses the GPU.",
)
KINDS = (MEMORY_LOW, SWAP_USED, DISK_LOW, IN_PIECES)


@dataclass(frozen=True)
class MemoryFacts:
    """Memory of a device in bytes; `swap_used` is 0 where it is not known."""

    device: str
    total: int
    available: int
    swap_used: int = 0


@dataclass(frozen=True)
class DiskFacts:
    """The file system of the weight cache, in bytes.

    Attributes:
        free: free on the file system.
        limit: what the cache may take.
        used: what the cache takes now.
    """

    directory: str
    free: int
    limit: int
    used: int


@dataclass(frozen=True)
class BlockFacts:
    """Memory of one compute device, in bytes.

    Attributes:
        compute: torch's name of the device.
        free: what was asked for, which the system says is free.
        largest: the largest block that was had.
        problem: why the largest block is not known; "" if it is.
    """

    compute: str
    free: int
    largest: int
    problem: str = ""


def judge_memory(memories: Sequence[MemoryFacts]) -> list[Finding]:
    findings = []
    for memory in memories:
        if memory.available < max(LOW_SHARE * memory.total, LOW_BYTES):
            detail = f"{_gib(memory.available)} of {_gib(memory.total)} is free"
            findings.append(Finding(MEMORY_LOW, memory.device, detail))
        if memory.swap_used > SWAP_BYTES:
            findings.append(Finding(SWAP_USED, memory.device, f"{_gib(memory.swap_used)} is in swap"))
    return findings


def judge_blocks(blocks: Sequence[BlockFacts], device: str) -> list[Finding]:
    """Judge the largest blocks of the compute devices of this device, which is called `device`."""
    findings = []
    for block in blocks:
        if block.problem or block.largest < BLOCK_SHARE * block.free:
            largest = f"the largest block on {block.compute} has {_gib(block.largest)} of {_gib(block.free)}"
            findings.append(Finding(IN_PIECES, device, block.problem or largest))
    return findings


def judge_disk(disk: DiskFacts, device: str) -> list[Finding]:
    """Judge the disk of the cache; a cache that is turned off needs no space."""
    wanted = max(0, disk.limit - disk.used)
    if not disk.limit or disk.free >= wanted:
        return []
    detail = f"{_gib(disk.free)} is free at {disk.directory}; the cache may take {_gib(wanted)} more"
    return [Finding(DISK_LOW, device, detail)]


def memory_facts(device: str) -> MemoryFacts:
    """Read the memory of this device, which is called `device`."""
    memory = read_available_memory()
    return MemoryFacts(device, memory.total, memory.available, int(psutil.swap_memory().used))


def disk_facts(directory: Path, limit: int) -> DiskFacts:
    """Read the file system of a directory that may not exist yet; files that cannot be seen do not count."""
    existing = next(parent for parent in (directory, *directory.parents) if os.access(parent, os.F_OK))
    used = 0
    for folder, _, files in os.walk(directory):
        for file in files:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                used += (Path(folder) / file).stat().st_size
    return DiskFacts(str(directory), shutil.disk_usage(existing).free, limit, used)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
