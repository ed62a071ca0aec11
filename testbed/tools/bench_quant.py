"""Measure the product of one linear layer on this device, by quantisation and number of rows."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from flowedge.models.host.payloads import DTYPES
from flowedge.models.quant import int4_kernels, w8a16
from flowedge.models.quant.backend import Backend, WeightRows
from flowedge.models.quant.int4 import Int4
from flowedge.models.quant.quantize import QUANTISATIONS, check_available, module_bytes, quantize_linear
from flowedge_testbed.report.markdown import table

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 3
# Products that need no kernel, by the option's word.
UNPACKED: dict[str, Backend] = {
    "int4-unpacked": Int4(int4_kernels.UNPACKED),
    "w8a16-unpacked": w8a16.W8A16(w8a16.UNPACKED),
}
BETWEEN = 1 << 28  # bytes that are written between products, so that weights come from memory each time


def product_ms(layer: nn.Module, rows: torch.Tensor, repeats: int, clear: Callable[[], None]) -> float:
    """Return the shortest of `repeats` forwards in ms. Weights are evicted from the caches before each."""
    shortest = float("inf")
    with torch.inference_mode():
        layer(rows)
        for _ in range(repeats):
            clear()
            start = time.perf_counter()
            layer(rows)
            if rows.device.type == "cuda":
                torch.cuda.synchronize(rows.device)
            shortest = min(shortest, time.perf_counter() - start)
    return shortest * 1e3


def measure(
    out_features: int, in_features: int, cases: Sequence[tuple[str, str]], device: torch.device, repeats: int
) -> list[list[str]]:
    """Return a line of the table for each (quantisation, dtype): its bytes, then ms for each of ROWS."""
    spoiled = torch.zeros(BETWEEN, dtype=torch.uint8, device=device)

    def clear() -> None:
        spoiled.add_(1)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    lines = []
    for quant, dtype_name in cases:
        torch.manual_seed(0)
        linear = nn.Linear(
            in_features, out_features, bias=False, device=device, dtype=DTYPES[dtype_name]
        ).requires_grad_(False)
        if (backend := UNPACKED.get(quant)) is None:
            layer = quantize_linear(linear, quant)
        else:
            encoded = backend.encode(WeightRows.of(linear.weight))
            layer = backend.build(encoded, linear, DTYPES[dtype_name], device)
        del linear
        times = [
            product_ms(
                layer,
                torch.randn(count, in_features, device=device, dtype=DTYPES[dtype_name]),
                repeats,
                clear,
            )
            for count in ROWS
        ]
        size = f"{module_bytes(layer) / 2**20:.0f}"
        lines.append([quant, dtype_name, size, *(f"{value:.1f}" for value in times)])
    return lines


def main() -> None:
    """Print a table in Markdown, with the machine that it was measured on."""
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.bench_quant", description=__doc__)
    parser.add_argument("--shape", default="11008x4096", help="weights: out_features x in_features")
    choices = (*QUANTISATIONS, *UNPACKED)
    parser.add_argument("--quant", nargs="+", choices=choices, default=["none", "int8", "nf4", "int4"])
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    out_features, in_features = (int(part) for part in options.shape.split("x"))
    for quant in set(options.quant) - set(UNPACKED):
        check_available(quant, device)
    cases = [(quant, dtype) for quant in options.quant for dtype in options.dtype]
    lines = measure(out_features, in_features, cases, device, options.repeats)
    print(f"{options.shape} weights, ms by rows, shortest of {options.repeats}; {_place(device, options)}\n")
    print(table(["quant", "rows in", "MiB", *map(str, ROWS)], lines))


def _place(device: torch.device, options: argparse.Namespace) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    load = os.getloadavg()[0]
    return (
        f"{platform.machine()} with {capability}, {options.threads} threads, torch {torch.__version__}, "
        f"load average {load:.1f}"
    )


if __name__ == "__main__":
    main()
