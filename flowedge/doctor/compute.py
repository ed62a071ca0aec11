"""Whether PyTorch and bitsandbytes work on this device."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from flowedge.doctor.finding import ERROR, WARNING, Finding

TORCH_BROKEN = ERROR(
    "torch-unusable",
    "PyTorch cannot be imported or does not compute",
    "Install FlowEdge again with device_agents/install.sh, which picks the build for the device.",
)
NO_CUDA = WARNING(
    "no-cuda",
    "the device has an NVIDIA GPU, and PyTorch cannot use it",
    "On a Jetson install NVIDIA's build of PyTorch (device_agents/install.sh does); elsewhere one for CUDA, "
    "and the driver: nvidia-smi. The agent's user has to be in the groups video and render.",
)
NO_BITSANDBYTES = WARNING(
    "bitsandbytes-unusable",
    "bitsandbytes has no backend that works here, so int8, nf4 and fp4 cannot be used",
    "Install bitsandbytes as constraints.txt pins it, or use --quant int4 or none.",
)
KINDS = (TORCH_BROKEN, NO_CUDA, NO_BITSANDBYTES)
TRIAL_S = 120.0
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/proc/driver/nvidia/version")


@dataclass(frozen=True)
class ComputeFacts:
    """What works on this device.

    Attributes:
        gpu: whether the device has an NVIDIA GPU, judged by files of the system.
        cuda: whether PyTorch can use it.
        torch_problem, bitsandbytes_problem: None when the library works.
    """

    gpu: bool
    cuda: bool
    torch_problem: str | None = None
    bitsandbytes_problem: str | None = None


def judge_compute(facts: ComputeFacts, device: str) -> list[Finding]:
    if facts.torch_problem is not None:
        return [Finding(TORCH_BROKEN, device, facts.torch_problem)]
    findings = []
    if facts.gpu and not facts.cuda:
        findings.append(Finding(NO_CUDA, device, "there is a GPU, but torch.cuda.is_available() is False"))
    if facts.bitsandbytes_problem is not None:
        findings.append(Finding(NO_BITSANDBYTES, device, facts.bitsandbytes_problem))
    return findings


def try_libraries(timeout_s: float = TRIAL_S) -> ComputeFacts:
    """Try the libraries in a process of their own, which they may crash or hang (see library_trial)."""
    gpu = any(Path(file).exists() for file in _GPU_FILES)
    command = [sys.executable, "-m", "flowedge.doctor.library_trial"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ComputeFacts(gpu, cuda=False, torch_problem=f"it did not answer within {timeout_s:g} s")
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        words = done.stderr.strip().rpartition("\n")[2]
        return ComputeFacts(
            gpu, cuda=False, torch_problem=f"the process ended with {done.returncode}: {words}"
        )
    tried = json.loads(last)
    return ComputeFacts(gpu, tried["cuda"], None, tried["bitsandbytes"])
