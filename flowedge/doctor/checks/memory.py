"""Whether a device has memory and disk to spare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.doctor.finding import Finding, FindingKind, Severity

LOW_SHARE = 0.1
LOW_BYTES = 512 << 20
SWAP_BYTES = 64 << 20
DISK_BYTES = 1 << 30

MEMORY_LOW = FindingKind(
    "memory-low",
    Severity.WARNING,
    "less than a tenth of a device's memory, or than 512 MiB, is free",
    "Stop what else runs there (a desktop takes 1 GiB: systemctl set-default multi-user.target), or free the "
    "agent with flowedge release.",
)
SWAP_USED = FindingKind(
    "swap-used",
    Severity.WARNING,
    "this device keeps memory in swap, which makes a layer's time uneven",
    "Give the device a smaller block, or stop other programs; then swapoff -a and swapon -a bring it back.",
)
DISK_LOW = FindingKind(
    "disk-low",
    Severity.WARNING,
    "the disk has less room than the cache of quantised weights may take",
    "Make room, name another disk in cache.dir, or lower cache.gib.",
)
KINDS = (MEMORY_LOW, SWAP_USED, DISK_LOW)


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes of a device; `swap_used` is 0 where it is not known."""

    device: str
    total: int
    available: int
    swap_used: int = 0


@dataclass(frozen=True)
class DiskFacts:
    """Bytes of the file system that the cache is on.

    Attributes:
        limit: what the cache may take; used: what it takes now.
    """

    directory: str
    free: int
    limit: int
    used: int


def judge_memory(memories: Sequence[MemoryFacts]) -> list[Finding]:
    """From the memory of devices."""
    findings = []
    for memory in memories:
        if memory.available < max(LOW_SHARE * memory.total, LOW_BYTES):
            detail = f"{_gib(memory.available)} of {_gib(memory.total)} is free"
            findings.append(Finding(MEMORY_LOW, memory.device, detail))
        if memory.swap_used > SWAP_BYTES:
            findings.append(Finding(SWAP_USED, memory.device, f"{_gib(memory.swap_used)} is in swap"))
    return findings


def judge_disk(disk: DiskFacts, device: str) -> list[Finding]:
    """From the disk of the cache; a cache that is turned off needs none."""
    wanted = max(0, disk.limit - disk.used)
    if not disk.limit or disk.free >= wanted:
        return []
    detail = f"{_gib(disk.free)} is free at {disk.directory}; the cache may take {_gib(wanted)} more"
    return [Finding(DISK_LOW, device, detail)]


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
