"""`python -m testbed.tools.shared_prefix`: sessions that begin with the same rows, in copies and in pages.

Prints how many fit a given memory, which is measured; how long one takes to be opened with the rows; and how
long a row of one session takes to be computed, in seconds of the thread. The cache is that of a model of
Llama-3.2 1B's shape; the times of rows are of some of its layers, with arbitrary weights. Beyond the sessions
that can share pages, rows are copied.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from flowedge.engine.pages import PAGE_ROWS
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.kv_store import KvFormat
from flowedge.models.block import LayerBlock
from flowedge.models.families.parts import KeyHeads
from flowedge.models.host.shared_pages import most_sharing
from flowedge.planning.measuring.generic_layers import generic_block
from flowedge.planning.profile.model import LayerSizes

SIZES = LayerSizes(hidden=2048, intermediate=8192, heads=32, kv_heads=8)
LAYERS, TIMED_LAYERS = 16, 4
CAPACITY = 8192
FORMATS: dict[str, tuple[torch.dtype, KvFormat]] = {
    "float32": (torch.float32, "native"),
    "bfloat16": (torch.bfloat16, "native"),
    "int8": (torch.bfloat16, "int8"),
}
STEPS = 101


def never() -> bool:
    return False


def whole_pages(rows: int) -> int:
    return rows // PAGE_ROWS * PAGE_ROWS


def memory() -> int:
    """Bytes of this process; what is mapped twice counts once."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class Chats:
    """Sessions whose first rows are the same: the caches of a block of all layers."""

    def __init__(self, block: LayerBlock, prefix: int, own: int, *, shared: bool) -> None:
        """prefix, own: rows of a session."""
        self._block, self._prefix, self._own, self._shared = block, prefix, own, shared
        self._heads = [KeyHeads(SIZES.kv_heads, SIZES.hidden // SIZES.heads)] * LAYERS
        self._rows = torch.randn(2, SIZES.kv_heads, prefix + own, SIZES.hidden // SIZES.heads).to(block.dtype)

    def opened(self) -> Iterator[float]:
        """Open sessions; yields the seconds that each has taken to be opened with the rows of the first."""
        source = self._written(self._cache(), 0)
        yield 0.0
        kept = [source]
        while True:
            start = time.perf_counter()
            cache = self._cache()
            shares = self._shared and len(kept) < most_sharing(2 * LAYERS * SIZES.kv_heads)
            cache.copy(source, np.arange(self._prefix), whole_pages(self._prefix) if shares else 0)
            seconds = time.perf_counter() - start
            kept.append(self._written(cache, self._prefix))
            yield seconds

    def _cache(self) -> KVCache:
        block, exactness = self._block, self._block.exactness
        return KVCache(
            self._heads,
            CAPACITY,
            block.dtype,
            ordered=None if exactness is None else exactness.attention,
            kv=block.kv,
        )

    def _written(self, cache: KVCache, first: int) -> KVCache:
        for layer in range(LAYERS):
            cache.store.write_both(layer, first, self._rows[:, :, first:])
        return cache


def fitting(chats: Chats, num_bytes: int) -> tuple[int, float]:
    """Return how many sessions fit, and the median milliseconds in which one is opened."""
    gc.collect()
    before, times = memory(), list[float]()
    for seconds in chats.opened():
        if memory() - before > num_bytes:
            break
        times.append(seconds)
    return len(times), 1e3 * median(times[2:])


def step_ms(block: LayerBlock, context: int) -> Sequence[float]:
    """Return the median milliseconds of a row whose context is copied, and of one that shares its pages."""
    source = block.new_cache(CAPACITY)
    heads, size = SIZES.kv_heads, SIZES.hidden // SIZES.heads
    for layer in range(block.num_layers):
        source.store.write_both(layer, 0, torch.randn(2, heads, context, size).to(block.dtype))
    copied, shared = block.new_cache(CAPACITY), block.new_cache(CAPACITY)
    for cache, rows in ((copied, 0), (shared, whole_pages(context))):
        cache.copy(source, np.arange(context), rows)
    inputs = torch.randn(1, block.hidden_size).to(block.dtype)
    times: list[list[float]] = [[], []]
    with torch.inference_mode():
        for _ in range(STEPS):
            for cache, own in zip((copied, shared), times, strict=True):
                start = time.thread_time()
                block.forward(inputs, np.array([context]), cache, context, context, np.array([-1]), never)
                own.append(time.thread_time() - start)
    return [1e3 * median(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.shared_prefix", description=__doc__)
    parser.add_argument("--prefix", type=int, default=1000, help="rows that all sessions begin with")
    parser.add_argument("--own", type=int, default=400, help="further rows of each session")
    parser.add_argument("--gib", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| cache | sessions, copied | shared | opened in ms, copied | shared | a row in ms, copied | shared |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, (dtype, kv) in FORMATS.items():
        block = replace(generic_block(SIZES, TIMED_LAYERS, dtype, torch.device("cpu"), exact=True), kv=kv)
        counted = [
            fitting(Chats(block, options.prefix, options.own, shared=shared), int(options.gib * 2**30))
            for shared in (False, True)
        ]
        steps = step_ms(block, options.prefix)
        cells = [f"{count}" for count, _ in counted] + [f"{ms:.1f}" for _, ms in counted]
        print(f"| {name} | {' | '.join([*cells, *(f'{ms:.2f}' for ms in steps)])} |", flush=True)


if __name__ == "__main__":
    main()
