"""Tries PyTorch and bitsandbytes as a program of its own, since a broken library may crash or hang it.

Prints what works as a line of JSON. If PyTorch is broken, the process ends with the error of it.
"""

from __future__ import annotations

import json

import torch

from flowedge.models.quant.bitsandbytes import library


def main() -> None:
    cuda = bool(torch.cuda.is_available())
    device = "cuda" if cuda else "cpu"
    assert float((torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum()) == 512
    print(json.dumps({"cuda": cuda, "bitsandbytes": _bitsandbytes_problem(device)}))


def _bitsandbytes_problem(device: str) -> str | None:
    """Quantise 64 x 64 weights to nf4 and multiply with them; return what goes wrong."""
    try:
        linear = library().nn.Linear4bit
        layer = linear(64, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4").to(device)
        result = layer(torch.ones(1, 64, device=device))
        return None if bool(torch.isfinite(result).all()) else "a product of 4-bit weights is not finite"
    except Exception as error:  # noqa: BLE001 (a broken library may raise anything)
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


if __name__ == "__main__":
    main()
