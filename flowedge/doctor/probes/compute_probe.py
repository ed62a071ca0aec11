"""Tries PyTorch and bitsandbytes in a process of its own, which they may crash or hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from flowedge.doctor.checks.compute import ComputeFacts

TRY_S = 120.0
_GPU_FILES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvhost-ctrl-gpu", "/proc/driver/nvidia/version")


def try_libraries(timeout_s: float = TRY_S) -> ComputeFacts:
    """What works here."""
    gpu = any(Path(file).exists() for file in _GPU_FILES)
    command = [sys.executable, "-m", "flowedge.doctor.probes.compute_probe"]
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


def _bitsandbytes_problem(device: str) -> str | None:
    """What goes wrong when 64 x 64 weights are quantised to nf4 and multiplied with."""
    import torch  # noqa: PLC0415

    from flowedge.models.quant.bitsandbytes import library  # noqa: PLC0415

    try:
        bnb = library()
        layer = bnb.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4").to(
            device
        )
        result = layer(torch.ones(1, 64, device=device))
        return None if bool(torch.isfinite(result).all()) else "a product of 4-bit weights is not finite"
    except Exception as error:  # noqa: BLE001 (whatever a library that is broken raises is what is asked for)
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def main() -> None:
    """Prints what works as a line of JSON; a PyTorch that is broken ends the process with its error."""
    import torch  # noqa: PLC0415

    cuda = bool(torch.cuda.is_available())
    device = "cuda" if cuda else "cpu"
    assert float((torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum()) == 512
    print(json.dumps({"cuda": cuda, "bitsandbytes": _bitsandbytes_problem(device)}))


if __name__ == "__main__":
    main()
