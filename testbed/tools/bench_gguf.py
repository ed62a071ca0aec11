"""Measure reading a GGUF model: its header, its weights in float32, and the error of holding them in int4.

Run: python -m testbed.tools.bench_gguf MODEL.gguf [--layers 2]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.loading import linear_weights
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.block_repacking import repack_blocks
from flowedge.models.quant.int4 import Int4
from flowedge_testbed.report.markdown import table

_MIDDLE = 8


def int4_weights(tensors: Tensors, out_features: int) -> torch.Tensor:
    """The weights [out_features, in_features] in float32 that an encoded weight stands for."""
    levels = torch.stack((tensors["weight"] >> 4, tensors["weight"] & 15), dim=2).flatten(1).float()
    groups = (levels - _MIDDLE).view(len(levels), tensors["scale"].shape[1], -1)
    weights = groups * tensors["scale"].float()[..., None] + tensors["zero"].float()[..., None]
    return weights.flatten(1)[:out_features]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The root mean square of the difference, as a share of that of `expected`."""
    return float(((found - expected).pow(2).mean() / expected.pow(2).mean()).sqrt())


def measure(checkpoint: Checkpoint, layers: int) -> list[list[str]]:
    """A row of the table for each type that the first `layers` layers have linear weights in."""
    count: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for index in range(min(layers, int(checkpoint.config.num_hidden_layers))):
        for name in linear_weights(checkpoint, index):
            kind = checkpoint.block_type(name) or str(checkpoint.dtype(name)).removeprefix("torch.")
            start = time.perf_counter()
            weights = checkpoint.tensor(name).float()
            seconds[kind] += time.perf_counter() - start
            count[kind] += weights.numel()
            again = relative_error(int4_weights(Int4().encode(WeightRows.of(weights)), len(weights)), weights)
            repacked = repack_blocks(checkpoint, name, Int4.name)
            kept = (
                again if repacked is None else relative_error(int4_weights(repacked, len(weights)), weights)
            )
            errors[kind].append((kept, again))
    rows = []
    for kind, found in errors.items():
        kept, again = (sum(column) / len(found) for column in zip(*found, strict=True))
        rows.append([kind, f"{count[kind] / seconds[kind] / 1e6:.0f}", f"{kept:.4f}", f"{again:.4f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--layers", type=int, default=2, help="layers to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    checkpoint = Checkpoint.open(arguments.model)
    print(f"opened in {time.perf_counter() - start:.2f} s, config included\n")
    heads = ["type", "million weights/s", "error in int4", "error if quantised again"]
    print(table(heads, measure(checkpoint, arguments.layers)))


if __name__ == "__main__":
    main()
