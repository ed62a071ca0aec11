"""Whether the libraries that compute are there and work."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.doctor.finding import Finding, FindingKind, Severity

TORCH_BROKEN = FindingKind(
    "torch-unusable",
    Severity.ERROR,
    "PyTorch cannot be imported or does not compute",
    "Install FlowEdge again with device_agents/install.sh, which picks the build for the device.",
)
NO_CUDA = FindingKind(
    "no-cuda",
    Severity.WARNING,
    "the device has an NVIDIA GPU, and PyTorch cannot use it",
    "On a Jetson install NVIDIA's build of PyTorch (device_agents/install.sh does); elsewhere one for CUDA, "
    "and the driver: nvidia-smi. The agent's user has to be in the groups video and render.",
)
NO_BITSANDBYTES = FindingKind(
    "bitsandbytes-unusable",
    Severity.WARNING,
    "bitsandbytes has no backend that works here, so int8, nf4 and fp4 cannot be used",
    "Install bitsandbytes as constraints.txt pins it, or use --quant int4 or none.",
)
KINDS = (TORCH_BROKEN, NO_CUDA, NO_BITSANDBYTES)


@dataclass(frozen=True)
class ComputeFacts:
    """What a process found out that tried them.

    Attributes:
        gpu: whether the device has an NVIDIA GPU, as files of the system tell.
        torch_problem, bitsandbytes_problem: None when they work.
    """

    gpu: bool
    cuda: bool
    torch_problem: str | None = None
    bitsandbytes_problem: str | None = None


def judge_compute(facts: ComputeFacts, device: str) -> list[Finding]:
    """From what was tried."""
    if facts.torch_problem is not None:
        return [Finding(TORCH_BROKEN, device, facts.torch_problem)]
    findings = []
    if facts.gpu and not facts.cuda:
        findings.append(Finding(NO_CUDA, device, "there is a GPU, but torch.cuda.is_available() is False"))
    if facts.bitsandbytes_problem is not None:
        findings.append(Finding(NO_BITSANDBYTES, device, facts.bitsandbytes_problem))
    return findings
