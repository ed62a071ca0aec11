"""Check the products with int4 and w8a16 weights on a device: `python check_products.py [--device cuda]`.

It needs torch and numpy alone, so that it also runs on an emulated processor. For every group size it prints
the largest error over several numbers of rows, against a plain product in float64. A wrong product ends it
with an error.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from flowedge.models.quant import int4_kernels, w8a16
from flowedge.models.quant.hardware import Hardware
from flowedge.models.quant.int4 import GROUPS, Int4, padded_shape
from flowedge.models.quant.w8a16 import W8A16

OUT, IN = 144, 512
ROW_COUNTS = (1, 2, 3, 5, 8, 16, 17, 64, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    hardware = Hardware.of(device)
    kernel = int4_kernels.kernel_of(hardware)
    place = f"CUDA {hardware.cuda_capability}" if hardware.cuda_capability else hardware.cpu_capability
    print(f"torch {torch.__version__}, {hardware.machine}, {place}: int4 by {kernel.name}")
    print("weights  group  largest error  a row alone and among others  ms by rows", flush=True)
    for group in GROUPS:
        layer, plain = _int4(group, device)
        if kernel is int4_kernels.CUDA:  # which rounds each weight, where CPUs keep float32
            plain = plain.bfloat16().double()
        _check("int4", group, layer, plain, kernel.dtype)
    for group in (IN, 64):
        layer, plain = _w8a16(group, device)
        _check("w8a16", group, layer, plain, w8a16.kernel_of(hardware, IN // group).dtype)


def _int4(group: int, device: torch.device) -> tuple[nn.Module, torch.Tensor]:
    """A layer, and its weight in float64 [OUT, IN]."""
    generator = torch.Generator().manual_seed(group)
    out, width, _ = padded_shape(OUT, IN, group)
    weight = torch.randint(0, 256, (out, width // 2), dtype=torch.uint8, generator=generator)
    scale = torch.rand(out, width // group, generator=generator).add(0.1).bfloat16()
    zero = torch.randn(out, width // group, generator=generator).bfloat16()
    tensors = {"weight": weight, "scale": scale, "zero": zero}
    levels = torch.stack((weight >> 4, weight & 15), dim=2).flatten(1).double() - 8
    plain = levels * scale.double().repeat_interleave(group, 1) + zero.double().repeat_interleave(group, 1)
    return Int4().build(tensors, nn.Linear(IN, OUT, bias=False), torch.float32, device), plain[:OUT]


def _w8a16(group: int, device: torch.device) -> tuple[nn.Module, torch.Tensor]:
    """A layer, and its weight in float64 [OUT, IN]."""
    generator = torch.Generator().manual_seed(group)
    weight = torch.randint(-128, 128, (OUT, IN), dtype=torch.int8, generator=generator)
    scale = torch.rand(OUT, IN // group, generator=generator).add(0.1)
    layer = W8A16().build(
        {"weight": weight, "scale": scale}, nn.Linear(IN, OUT, bias=False), torch.float32, device
    )
    return layer, weight.double() * scale.double().repeat_interleave(group, 1)


def _check(name: str, group: int, layer: nn.Module, plain: torch.Tensor, dtype: torch.dtype) -> None:
    rows = torch.randn(max(ROW_COUNTS), IN, generator=torch.Generator().manual_seed(0))
    expected = rows.to(dtype).double() @ plain.T
    rows = rows.to(next(layer.parameters()).device)
    error, equal, times = 0.0, True, []
    with torch.inference_mode():
        alone = torch.cat([layer(row[None]) for row in rows]).cpu()
        for count in ROW_COUNTS:
            start = time.perf_counter()
            got = layer(rows[:count]).cpu()
            times.append(f"{count}: {(time.perf_counter() - start) * 1e3:.1f}")
            error = max(error, float((got - expected[:count]).abs().max() / expected.abs().max()))
            equal &= torch.equal(got, alone[:count])
    same = "bit-identical" if equal else "equal up to rounding"
    print(f"{name:7}  {group:5}  {error:13.2e}  {same:28}  {', '.join(times)}", flush=True)
    allowed = 1e-5 if dtype == torch.float32 else 2**-8
    if not error < allowed:
        raise SystemExit(f"the error of {name} is larger than {allowed}")


if __name__ == "__main__":
    main()
