"""The hardware that a product of quantised weights runs on."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

_TENSOR_CORES = (8, 0)  # bfloat16 tensor cores
_ARM64 = ("aarch64", "arm64")
# Weights in float32 at a time, in a product without a kernel: as many as a CPU's caches hold, and on a GPU so
# many that launches of kernels take less time than the kernels.
UNPACKED_WEIGHTS = {"cpu": 1 << 18, "cuda": 1 << 22}


def unpacked_rows(width: int, device: torch.device) -> int:
    """The rows [rows, width] of a weight that a product without a kernel expands at a time."""
    return max(1, UNPACKED_WEIGHTS[device.type] // width)


@dataclass(frozen=True)
class Hardware:
    """What the choice of a kernel depends on.

    Attributes:
        machine: the processor's architecture, as `platform.machine` names it.
        cpu_capability: the vector instructions that torch uses, as torch names them.
        cuda_capability: the GPU's compute capability; None for the CPU.
    """

    machine: str
    cpu_capability: str
    cuda_capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, device: torch.device) -> Hardware:
        """The hardware of `device`. A process without a GPU that has "cuda" tensors gets the usual kernel."""
        capability = None
        if device.type == "cuda":
            found = torch.cuda.is_available()
            capability = torch.cuda.get_device_capability(device) if found else _TENSOR_CORES
        return cls(platform.machine(), torch.backends.cpu.get_cpu_capability(), capability)

    @property
    def has_tensor_cores(self) -> bool:
        """Whether this is a GPU with bfloat16 tensor cores."""
        return self.cuda_capability is not None and self.cuda_capability >= _TENSOR_CORES

    @property
    def is_x86_with_vectors(self) -> bool:
        """Whether this is a CPU whose AVX2 or AVX-512 torch uses."""
        return self.cuda_capability is None and self.cpu_capability in ("AVX2", "AVX512")

    @property
    def is_arm64_cpu(self) -> bool:
        return self.cuda_capability is None and self.machine.lower() in _ARM64
