"""How much memory there is for the work of an agent, read without NVML, which a Jetson does not have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from flowedge.core.settings_group import SettingsGroup, setting
from flowedge.system.cgroup import cgroup_memory
from flowedge.system.memory_sums import GIB


class MemorySettings(SettingsGroup):
    """How much of the device's memory the agent may use. What does not fit is refused before it is loaded."""

    limit_gib: float | None = setting(
        None,
        "GiB that the agent may hold; if not set, all that the device and its cgroup have.",
        gt=0,
        examples=[6.0],
    )
    reserve_gib: float = setting(
        0.25, "GiB left free beside weights and caches, for activations and buffers.", ge=0
    )
    kv_tokens: int = setting(2048, "Tokens of context whose KV cache has to fit beside the weights.", ge=1)

    @property
    def limit_bytes(self) -> int | None:
        return None if self.limit_gib is None else int(self.limit_gib * GIB)

    @property
    def reserve_bytes(self) -> int:
        return int(self.reserve_gib * GIB)


@dataclass(frozen=True)
class AvailableMemory:
    """Bytes of memory there are and that can still be had; `bound` is what sets the latter."""

    total: int
    available: int
    bound: str


def read_available_memory(settings: MemorySettings | None = None, root: Path = Path("/")) -> AvailableMemory:
    """Memory of the device, of the control groups of this process, and by its own limit: the least of them.

    root: where /proc and /sys are found.
    """
    rooms = [_device_room(root)]
    for group in cgroup_memory(root):
        left = max(group.limit - group.used, 0)
        rooms.append(AvailableMemory(group.limit, left, f"the limit of cgroup {group.path}"))
    limit = settings.limit_bytes if settings is not None else None
    if limit is not None:
        rooms.append(AvailableMemory(limit, max(limit - resident_bytes(), 0), "the setting memory.limit_gib"))
    tightest = min(rooms, key=lambda room: room.available)
    return AvailableMemory(min(room.total for room in rooms), tightest.available, tightest.bound)


def read_available_cuda_memory() -> AvailableMemory:
    """Memory of the GPU that computes. It imports torch, and CUDA has to be available.

    A GPU that shares the device's memory says what is free of it, and files that are kept for being read
    again are not: what the device says of itself counts there.
    """
    import torch  # noqa: PLC0415

    if torch.cuda.get_device_properties(torch.cuda.current_device()).is_integrated:
        return read_available_memory()
    free, total = torch.cuda.mem_get_info()
    return AvailableMemory(int(total), int(free), "the GPU's memory")


def resident_bytes() -> int:
    """Bytes of memory this process holds."""
    return int(psutil.Process().memory_info().rss)


def _device_room(root: Path) -> AvailableMemory:
    bound = "the device's memory"
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        memory = psutil.virtual_memory()
        return AvailableMemory(int(memory.total), int(memory.available), bound)
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return AvailableMemory(total, available, bound)
