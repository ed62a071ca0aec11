"""Check this CPU's product with 4-bit weights against a plain product: `python check_products.py`.

It needs torch and numpy alone, so that it also runs in an emulated processor. It prints the kernel that the
table chooses and, for every group size, the largest error of all row counts; a wrong product ends it with an
error.
"""

from __future__ import annotations

import time

import torch
from torch import nn

from flowedge.models.quant.hardware import Hardware
from flowedge.models.quant.int4 import GROUPS, Int4, padded_shape
from flowedge.models.quant.int4_kernels import kernel_of

OUT, IN = 144, 512
ROW_COUNTS = (1, 2, 3, 5, 8, 16, 17, 64, 128)


def main() -> None:
    cpu = torch.device("cpu")
    hardware = Hardware.of(cpu)
    kernel = kernel_of(hardware)
    print(
        f"torch {torch.__version__}, {hardware.machine}, {hardware.cpu_capability}: {kernel.name}", flush=True
    )
    print("group  largest error  rows alone and together  ms by rows", flush=True)
    allowed = 1e-5 if kernel.dtype == torch.float32 else 2**-8
    for group in GROUPS:
        error, equal, times = _check(group, kernel.dtype)
        print(f"{group:5}  {error:13.2e}  {'equal' if equal else 'not equal':23}  {times}", flush=True)
        if error > allowed:
            raise SystemExit(f"the error is larger than {allowed}")


def _check(group: int, dtype: torch.dtype) -> tuple[float, bool, str]:
    """The largest error as a share of the largest result, whether rows are bit-identical, and the times."""
    generator = torch.Generator().manual_seed(group)
    out, width, _ = padded_shape(OUT, IN, group)
    weight = torch.randint(0, 256, (out, width // 2), dtype=torch.uint8, generator=generator)
    scale = torch.rand(out, width // group, generator=generator).add(0.1).bfloat16()
    zero = torch.randn(out, width // group, generator=generator).bfloat16()
    tensors = {"weight": weight, "scale": scale, "zero": zero}
    like = nn.Linear(IN, OUT, bias=False)
    layer = Int4().build(tensors, like, torch.float32, torch.device("cpu"))
    levels = torch.stack((weight >> 4, weight & 15), dim=2).flatten(1).double() - 8
    plain = levels * scale.double().repeat_interleave(group, 1) + zero.double().repeat_interleave(group, 1)
    rows = torch.randn(max(ROW_COUNTS), IN, generator=generator)
    expected = rows.to(dtype).double() @ plain[:OUT].T
    error, times = 0.0, []
    with torch.inference_mode():
        alone = torch.cat([layer(row[None]) for row in rows])
        equal = True
        for count in ROW_COUNTS:
            start = time.perf_counter()
            got = layer(rows[:count])
            times.append(f"{count}: {(time.perf_counter() - start) * 1e3:.1f}")
            error = max(error, float((got - expected[:count]).abs().max() / expected.abs().max()))
            equal &= torch.equal(got, alone[:count])
    return error, equal, ", ".join(times)


if __name__ == "__main__":
    main()
