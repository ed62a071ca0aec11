"""Whether PyTorch, the quantisations and the GPU work on this device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowedge.device.compute import (
    CPU,
    NO_CUDA_REMEDY,
    NOT_INSTALLED,
    QUANT_REMEDY,
    DeviceProbe,
    has_gpu,
    try_device,
)
from flowedge.doctor.finding import ERROR, INFO, WARNING, Finding

TORCH_BROKEN = ERROR(
    "torch-unusable",
    "PyTorch cannot be imported or does not compute",
    "Install FlowEdge again with device_agents/install.sh, which picks the build for the device.",
)
NO_CUDA = WARNING(
    "no-cuda",
    "the device has an NVIDIA GPU, and nothing can be computed on it",
    f"{NO_CUDA_REMEDY[:1].upper()}{NO_CUDA_REMEDY[1:]}.",
)
NO_BITSANDBYTES = WARNING(
    "bitsandbytes-unusable",
    "some quantisations cannot be multiplied with here",
    "Install bitsandbytes as constraints.txt pins it, or use --quant int4 or none.",
)
NOT_HERE = INFO(
    "no-bitsandbytes",
    "bitsandbytes is not installed, so that nf4, fp4 and llm-int8 are refused on this device",
    "Use --quant int8, int4 or w8a16. On a board, device_agents/install.sh tries whether bitsandbytes works.",
)
NO_GPU_QUANT = WARNING(
    "gpu-quantisation-unusable",
    "the GPU works, but cannot multiply with some quantisations, whose layers run on the CPU",
    f"{QUANT_REMEDY}.",
)
KINDS = (TORCH_BROKEN, NO_CUDA, NO_BITSANDBYTES, NOT_HERE, NO_GPU_QUANT)
TRIAL_S = 120.0


@dataclass(frozen=True)
class ComputeFacts:
    """What was tried on this device; `gpu` is None where there is no NVIDIA GPU."""

    cpu: DeviceProbe
    gpu: DeviceProbe | None = None


def judge_compute(facts: ComputeFacts, device: str) -> list[Finding]:
    if facts.cpu.problem:
        return [Finding(TORCH_BROKEN, device, facts.cpu.problem)]
    findings = []
    if facts.gpu is not None and facts.gpu.problem:
        findings.append(Finding(NO_CUDA, device, facts.gpu.problem))
    elif facts.gpu is not None and _failed(facts.gpu):
        findings.append(Finding(NO_GPU_QUANT, device, _listed(_failed(facts.gpu))))
    if _failed(facts.cpu):
        findings.append(Finding(NO_BITSANDBYTES, device, _listed(_failed(facts.cpu))))
    missing = facts.cpu.quant_problems.keys() - _failed(facts.cpu).keys()
    return findings + ([Finding(NOT_HERE, device, ", ".join(sorted(missing)))] if missing else [])


def try_compute(timeout_s: float = TRIAL_S) -> ComputeFacts:
    """Try the CPU, and the GPU if there is one, each in a process of its own."""
    gpu = try_device("cuda", timeout_s) if has_gpu() else None
    return ComputeFacts(try_device(CPU, timeout_s), gpu)


def judge_choices(devices: Sequence[tuple[str, str]]) -> list[Finding]:
    """Judge what agents say of their compute devices: (name, why it is not the GPU) of each agent."""
    return [Finding(NO_CUDA, name, reason) for name, reason in devices if reason]


def _failed(trial: DeviceProbe) -> Mapping[str, str]:
    """Return the quantisations that went wrong; others are refused because their library is not installed."""
    return {quant: why for quant, why in trial.quant_problems.items() if why != NOT_INSTALLED}


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{quant}: {problem}" for quant, problem in sorted(problems.items()))
