"""Memory of the device: how much is available, and whether a claim on it fits.

It is read without NVML, which a Jetson does not have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from flowedge.core.errors import CapacityError
from flowedge.core.settings_group import SettingsGroup, setting
from flowedge.device.cgroup import cgroup_memory

GIB = 2**30
LATELY_S = 0.25


class MemorySettings(SettingsGroup):
    """How much of the device's memory the agent may use. What does not fit is refused before it is loaded."""

    limit_gib: float | None = setting(
        None,
        "Maximum memory of the agent in GiB. Default: all that the device and its cgroup have.",
        gt=0,
        examples=[6.0],
    )
    reserve_gib: float = setting(
        0.25, "GiB to leave free beside weights and caches, for activations and buffers.", ge=0
    )
    kv_tokens: int = setting(
        2048, "Context length in tokens whose KV cache must fit beside the weights.", ge=1
    )

    @property
    def reserve_bytes(self) -> int:
        return int(self.reserve_gib * GIB)


@dataclass(frozen=True)
class AvailableMemory:
    """Memory in bytes.

    Attributes:
        total: bytes that there are.
        available: bytes that can still be taken.
        bound: what limits `available`, for people.
    """

    total: int
    available: int
    bound: str


def read_available_memory(settings: MemorySettings | None = None, root: Path = Path("/")) -> AvailableMemory:
    """Return the tightest of the device's memory, the process's control groups and its own limit.

    root: directory with /proc and /sys.
    """
    limits = [_device_memory(root)]
    for group in cgroup_memory(root):
        left = max(group.limit - group.used, 0)
        limits.append(AvailableMemory(group.limit, left, f"the limit of cgroup {group.path}"))
    if settings is not None and settings.limit_gib is not None:
        own = int(settings.limit_gib * GIB)
        limits.append(AvailableMemory(own, max(own - resident_bytes(), 0), "the setting memory.limit_gib"))
    tightest = min(limits, key=lambda limit: limit.available)
    return AvailableMemory(min(limit.total for limit in limits), tightest.available, tightest.bound)


def lately_available() -> int:
    """Return the bytes that were available within the last LATELY_S seconds, for who asks again and again."""
    return _available_in(int(time.monotonic() / LATELY_S))


@lru_cache(maxsize=1)
def _available_in(_period: int) -> int:
    return read_available_memory().available


def read_memory_of(device: str, settings: MemorySettings | None = None) -> AvailableMemory:
    """Return the memory that torch's device of this name takes weights and caches from."""
    if device.startswith("cuda"):
        return read_available_cuda_memory(device, settings)
    return read_available_memory(settings)


@dataclass(frozen=True)
class CudaMemory:
    """The figures of a CUDA device, in bytes.

    Attributes:
        total, free: the driver's figures of the whole device.
        reserved: bytes that torch has taken from the driver for this process.
        allocated: bytes of `reserved` that tensors have.
        integrated: whether the GPU shares the memory of the host.
        recorded: bytes of `reserved` that no tensor has and CUDA graphs use; torch gives the rest to the next
            tensors.
    """

    total: int
    free: int
    reserved: int
    allocated: int
    integrated: bool
    recorded: int = 0

    @property
    def used(self) -> int:
        """The bytes of torch's reserve that tensors and CUDA graphs have."""
        return self.allocated + self.recorded

    @property
    def idle(self) -> int:
        """The bytes of torch's reserve that the next tensors can have."""
        return self.reserved - self.used


def available_cuda_memory(
    cuda: CudaMemory, host: AvailableMemory, settings: MemorySettings | None
) -> AvailableMemory:
    """Return what a process can still take from a CUDA device, torch's idle reserve included.

    An integrated GPU counts cached files as used, so the figures of the host are taken there.

    Args:
        host: the memory of the host, without the agent's own limit.
        settings: with the agent's own limit, which holds for the memory that torch has reserved too.
    """
    base = host if cuda.integrated else AvailableMemory(cuda.total, cuda.free, "the GPU's memory")
    limits = [AvailableMemory(base.total, base.available + cuda.idle, base.bound)]
    if settings is not None and settings.limit_gib is not None:
        own = int(settings.limit_gib * GIB)
        # The pages of an integrated GPU are not among the pages that a process is said to hold.
        held = cuda.used + (resident_bytes() if cuda.integrated else 0)
        limits.append(AvailableMemory(own, max(own - held, 0), "the setting memory.limit_gib"))
    tightest = min(limits, key=lambda limit: limit.available)
    return AvailableMemory(min(limit.total for limit in limits), tightest.available, tightest.bound)


def read_available_cuda_memory(
    device: str = "cuda", settings: MemorySettings | None = None
) -> AvailableMemory:
    """Return the memory of torch's CUDA device of this name; CUDA has to be available."""
    import torch  # noqa: PLC0415 (an idle agent reads memory as well)

    free, total = torch.cuda.mem_get_info(device)
    # Graphs have pools of their own in the allocator; the pool of all other tensors is (0, 0).
    snapshot: Any = torch.cuda.memory_snapshot
    segments: list[dict[str, Any]] = snapshot()
    pooled = [each for each in segments if any(each["segment_pool_id"]) and _is_on(device, each["device"])]
    figures = CudaMemory(
        int(total),
        int(free),
        reserved=int(torch.cuda.memory_reserved(device)),
        allocated=int(torch.cuda.memory_allocated(device)),
        integrated=bool(torch.cuda.get_device_properties(device).is_integrated),
        recorded=sum(int(each["total_size"]) - int(each["allocated_size"]) for each in pooled),
    )
    return available_cuda_memory(figures, read_available_memory(), settings)


def _is_on(device: str, index: int) -> bool:
    """Return whether torch's name of a CUDA device stands for the device of this index; "cuda" is any."""
    _, colon, number = device.partition(":")
    return not colon or int(number) == index


def is_torch_loaded() -> bool:
    """Return whether this process has imported torch, without which a GPU's memory cannot be read."""
    return "torch" in sys.modules


def require_memory(
    claim: str, parts: Mapping[str, float], available: float, supply: str, advice: str
) -> None:
    """Check that parts of so many bytes each fit together into the bytes that are available.

    Args:
        claim: what would not fit, and where, as a sentence.
        supply: how much is available, as a sentence.
        advice: what to do about it, as a sentence.

    Raises:
        CapacityError: when they do not fit, with the size of each part and the sum.
    """
    needed = sum(parts.values())
    if needed > available:
        sums = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        total = f"{sums} = {gib(needed)}" if len(parts) > 1 else sums
        raise CapacityError(f"{claim}: {total}, and {supply}; {advice}")


def gib(size: float) -> str:
    """Return a number of bytes in GiB, with more digits for small models."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / GIB:.4f} GiB"


def resident_bytes() -> int:
    """Return the bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def _device_memory(root: Path) -> AvailableMemory:
    bound = "the device's memory"
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        memory = psutil.virtual_memory()
        return AvailableMemory(int(memory.total), int(memory.available), bound)
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return AvailableMemory(total, available, bound)
