"""What the figures were measured on: versions, processor, threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_TELLING = ("avx", "vnni", "amx", "asimd", "sve", "i8mm", "bf16", "fma", "f16c")


def describe_machine() -> dict[str, object]:
    """Return the processor, its flags for products, the load, and the versions that compute."""
    fields = _cpu_fields()
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "processor": fields.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "flags": sorted(flag for flag in flags if any(word in flag for word in _TELLING)),
        "kernels of torch": torch.backends.cpu.get_cpu_capability(),
        "load average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("flowedge", "torch", "transformers", "bitsandbytes")},
    }


def _cpu_fields() -> dict[str, str]:
    """Return the fields of the first processor; none where the system does not tell."""
    if not _CPUINFO.is_file():
        return {}
    lines = _CPUINFO.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}
