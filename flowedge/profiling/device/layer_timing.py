"""The time of a block's layers, run as a stage runs them. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.engine.executors import BlockExecutor
from flowedge.engine.jobs import DropCache, Forward, OpenCache
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.tensors import to_payload
from flowedge.profiling.device.timing import median_s

_SESSION = "measure"


def layer_times(
    block: LayerBlock, rows: Sequence[int], cached: int, repeats: int, tell: Callable[[int], None]
) -> dict[int, float]:
    """Seconds of one of the block's layers by rows: the stage's whole job over the number of layers.

    Each row sees `cached` rows before it. tell: called before each count of rows; what it raises passes.
    """
    executor = BlockExecutor(block)
    executor.run(OpenCache(_SESSION, cached + max(rows)))
    finish = synchronize(block.device)
    times = {}
    for count in rows:
        tell(count)
        run = partial(executor.run, _forward(block, count, cached))
        times[count] = median_s(run, repeats, finish=finish) / block.num_layers
    executor.run(DropCache(_SESSION))
    return times


def synchronize(device: torch.device) -> Callable[[], object]:
    """What waits until a device has done what it was given; nothing to wait for on the CPU."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def _forward(block: LayerBlock, rows: int, cached: int) -> Forward:
    """A chain of draft rows after `cached` rows of context."""
    slots = np.arange(cached, cached + rows, dtype=np.int64)
    parents: IntArray = slots - 1
    parents[0] = -1
    return Forward(
        session=_SESSION,
        gathered_until=cached,
        slots=np.zeros(0, dtype=np.int64),
        context=cached,
        cached=cached,
        tail_parents=parents,
        positions=slots,
        payload=_payload(block, rows),
    )


def _payload(block: LayerBlock, rows: int) -> Payload:
    generator = torch.Generator().manual_seed(rows)
    if block.is_first:
        tokens = torch.randint(block.vocab_size, (rows,), generator=generator)
        return tokens.numpy().astype(np.int32)
    return to_payload(torch.randn((rows, block.hidden_size), generator=generator).to(block.dtype))
