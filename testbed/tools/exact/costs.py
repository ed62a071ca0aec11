"""Measure what exact blocks cost: the time of a layer with masked and with ordered attention."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from flowedge.models.attention.kv_store import KvFormat
from flowedge.models.block import LayerBlock
from flowedge.models.exact.exactness import try_exactness
from flowedge.models.host.payloads import DTYPES
from flowedge.planning.measuring.generic_layers import generic_block
from flowedge.planning.profile.model import LayerSizes
from flowedge_testbed.report.markdown import table
from testbed.tools.gpu.turns import shortest_ms

SHAPES = {
    "8M": LayerSizes(hidden=256, intermediate=1024, heads=8, kv_heads=4),
    "1B": LayerSizes(hidden=2048, intermediate=5632, heads=32, kv_heads=4),
    "8B": LayerSizes(hidden=4096, intermediate=14336, heads=32, kv_heads=8),
    "7B": LayerSizes(hidden=4096, intermediate=11008, heads=32, kv_heads=32),
}


def never() -> bool:
    return False


class Timed:
    """A block of layers with a session that has a context; every forward is a chain of draft rows."""

    def __init__(self, block: LayerBlock, context: int, rows: int) -> None:
        self._block = block
        self._cache = block.new_cache(context + rows)
        self._cache.kv.copy_(torch.randn(self._cache.kv.shape).mul_(20))
        if self._cache.states is not None:
            self._cache.states.taken = context
        self._inputs = torch.randn(rows, block.hidden_size, device=block.device).to(block.dtype)
        self._positions = np.arange(context, context + rows)
        self._parents = np.arange(context - 1, context + rows - 1)
        self._parents[0] = -1
        self._context = self._cached = context

    def seconds(self) -> float:
        """The time of a forward: on a CPU that of this thread alone, so that other processes count little."""
        cuda = self._block.device.type == "cuda"
        clock = time.perf_counter if cuda else time.thread_time
        start = clock()
        self._block.forward(
            self._inputs, self._positions, self._cache, self._cached, self._context, self._parents, never
        )
        if cuda:
            torch.cuda.synchronize(self._block.device)
        return clock() - start


def measure(blocks: Sequence[LayerBlock], context: int, rows: int, repeats: int) -> list[float]:
    """The shortest forward of each block in ms a layer; the blocks take turns."""
    with torch.inference_mode():
        shortest = shortest_ms([Timed(block, context, rows) for block in blocks], repeats)
    return [ms / blocks[0].num_layers for ms in shortest]


def exact_copy(block: LayerBlock, kv: KvFormat) -> LayerBlock:
    trial = try_exactness(block.layers, block.rotary, block.dtype, block.device)
    if trial.exactness is None:
        raise SystemExit(f"the block cannot be exact here: {trial.reason}")
    return replace(block, exactness=trial.exactness, kv=kv)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--quant", default="none")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--contexts", nargs="*", type=int, default=[64, 1000, 4000])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 16, 128])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, lines = torch.device(arguments.device), []
    for shape in arguments.shapes:
        dtype = DTYPES[arguments.dtype]
        made = [
            generic_block(SHAPES[shape], arguments.layers, dtype, device, arguments.quant) for _ in range(2)
        ]
        blocks = [made[0], exact_copy(made[1], "native"), exact_copy(made[1], "int8")]
        for context in arguments.contexts:
            for rows in arguments.rows:
                masked, ordered, int8 = measure(blocks, context, rows, arguments.repeats)
                numbers = [masked, ordered, int8]
                shares = [f"{ordered / masked - 1:+.0%}", f"{int8 / masked - 1:+.0%}"]
                lines.append([shape, str(context), str(rows), *(f"{ms:.2f}" for ms in numbers), *shares])
        del made, blocks
    columns = ["model", "context", "rows", "masked", "ordered", "int8 cache", "more", "more with int8"]
    print(f"ms a layer, {arguments.dtype}, weights {arguments.quant}, {arguments.device}, one thread")
    print(table(columns, lines))


if __name__ == "__main__":
    main()
