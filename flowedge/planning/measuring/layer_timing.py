"""Times a block's layers, which run as a stage runs them, and takes the times apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import DropCache, Forward, ForwardBatch, OpenCache
from flowedge.models.block import LayerBlock
from flowedge.models.host.payloads import to_payload
from flowedge.planning.profile.measurement import short

RECORDING_RUNS = 3  # the first runs on a device with CUDA graphs: layer by layer, captured, replayed

LEAST_S, MOST_TIMES = 0.25, 8  # of the timings of one run, and by how much they are repeated at most

# Jobs of an agent follow a wait, after which processor and caches are slower than in a loop.
PAUSE_S = 0.001

LEAVES = 16  # rows by which an update of a state is timed

_SESSION = "measure"


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer by rows.

    Attributes:
        used: as an agent computes the rows.
        layer_by_layer: without CUDA graphs; empty where an agent uses none.
    """

    used: dict[int, float]
    layer_by_layer: dict[int, float] = field(default_factory=dict)


def compared_times(
    block: LayerBlock,
    rows: Sequence[int],
    cached: int,
    repeats: int,
    tell: Callable[[str], None],
    record: Callable[[LayerBlock], None],
) -> LayerSeconds:
    """Time a block as `layer_times` does, and again with CUDA graphs if it can be recorded.

    Args:
        tell: called with the number of rows in words, and the way they are computed, before each timing.
        record: lets a block record its forwards, if the block can and the agent does.
    """
    eager = layer_times(block, rows, cached, repeats, lambda count: tell(f"{count} rows"))
    record(block)
    if block.decoding is None:
        return LayerSeconds(eager)
    recorded = layer_times(block, rows, cached, repeats, lambda count: tell(f"{count} rows, CUDA graphs"))
    return LayerSeconds(eager) if block.decoding.failure else LayerSeconds(recorded, eager)


def layer_times(
    block: LayerBlock, rows: Sequence[int], cached: int, repeats: int, tell: Callable[[int], None]
) -> dict[int, float]:
    """Return seconds of one layer by rows: the time of the stage's job over the number of layers.

    Args:
        cached: rows in the cache that each row sees.
        tell: called with each number of rows before its timing; an exception of it ends the timing.
    """
    executor = BlockExecutor(block)
    executor.run(OpenCache(_SESSION, cached + max(rows)))
    finish = synchronize(block.device)
    times = {}
    for count in rows:
        tell(count)
        run = partial(executor.run, forward_job(block, count, cached))
        warm_up = 0 if block.decoding is None else RECORDING_RUNS
        seconds = median_s(run, repeats, prepare=pause, finish=finish, warm_up=warm_up)
        times[count] = seconds / block.num_layers
    executor.run(DropCache(_SESSION))
    return times


def update_s(block: LayerBlock, repeats: int) -> float:
    """Return the seconds of an update of the state of one layer, in a block of layers with a state.

    Rows that are leaves of a chain of drafts take their ancestors' updates once more.
    """
    executor = BlockExecutor(block)
    executor.run(OpenCache(_SESSION, 2 * LEAVES))
    chain, leaves = forward_job(block, LEAVES, 0), forward_job(block, LEAVES, 0, below=LEAVES)
    found = [
        median_s(
            partial(executor.run, job), repeats, prepare=pause, finish=synchronize(block.device), warm_up=2
        )
        for job in (chain, leaves)
    ]
    executor.run(DropCache(_SESSION))
    return max(found[1] - found[0], 0.0) / LEAVES / block.num_layers


def pause() -> None:
    """Wait as an agent waits between two jobs."""
    time.sleep(PAUSE_S)


def synchronize(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until the device has done its work; on the CPU it does nothing."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def median_s(
    run: Callable[[], object],
    repeats: int,
    *,
    prepare: Callable[[], object] = lambda: None,
    finish: Callable[[], object] = lambda: None,
    warm_up: int = 0,
) -> float:
    """Return the median of timings of `run` in seconds, after one or two runs that do not count.

    Short runs scatter more: they are repeated until they have taken LEAST_S, MOST_TIMES as often at most.

    Args:
        repeats: least number of timings.
        prepare: called before each run, outside of its time.
        finish: called after each run, inside of its time, to wait for a GPU.
        warm_up: least number of runs that do not count.
    """
    warm_up = max(warm_up, min(repeats, 2))
    times: list[float] = []
    while len(times) < warm_up + repeats * MOST_TIMES:
        prepare()
        started = time.perf_counter()
        run()
        finish()
        times.append(time.perf_counter() - started)
        if len(times) >= warm_up + repeats and sum(times[warm_up:]) >= LEAST_S:
            break
    return statistics.median(times[warm_up:])


def forward_job(block: LayerBlock, rows: int, cached: int, *, below: int = 0) -> ForwardBatch:
    """Return the job of a chain of draft rows after `cached` rows of context.

    below: draft rows that were computed before, also a chain, whose leaves the rows are, one of each.
    """
    slots = np.arange(cached, cached + max(rows, below), dtype=np.int64)
    parents: IntArray = slots - 1
    parents[0] = -1
    positions = slots
    if below:
        parents, positions = np.append(parents[:below], slots[:rows]), slots[:rows] + 1
    forward = Forward(
        session=_SESSION,
        gathered_until=cached + below,
        slots=np.zeros(0, dtype=np.int64),
        context=cached,
        cached=cached + below,
        tail_parents=parents,
        positions=positions,
        payload=_payload(block, rows),
    )
    return ForwardBatch((forward,))


def _payload(block: LayerBlock, rows: int) -> Payload:
    generator = torch.Generator().manual_seed(rows)
    if block.is_first:
        tokens = torch.randint(block.vocab_size, (rows,), generator=generator)
        return tokens.numpy().astype(np.int32)
    return to_payload(torch.randn((rows, block.input_width), generator=generator).to(block.dtype))


_LEAST_LAYER = 0.1  # share of its measured time that a layer keeps, however the timings scatter


def forward_seconds(several: Mapping[int, float], single: Mapping[int, float], layers: int) -> float:
    """Return what a forward takes beside its layers, from blocks of `layers` layers and of a single layer.

    Args:
        several, single: the time of a forward over the number of its layers; `single` may be empty.
    """
    # n layers take f + n * l, and a single layer takes f + l.
    found = [layers * (single[rows] - several[rows]) / (layers - 1) for rows in single]
    most = (1 - _LEAST_LAYER) * layers * min(several.values())
    return min(max(statistics.median(found), 0.0), most) if found else 0.0


def without_forward(times: Mapping[int, float], forward: float, layers: int) -> dict[int, float]:
    """Return the times of layers alone, from the time of a forward over the number of its layers.

    Where `forward` was found from other timings than `times`, a layer keeps at least a tenth of its time.
    """
    return {rows: max(seconds - forward / layers, _LEAST_LAYER * seconds) for rows, seconds in times.items()}


def attention_ms(far: Mapping[int, float], near: Mapping[int, float], cached: int) -> dict[int, float]:
    """Return the milliseconds that reading `cached` rows takes in a layer.

    Args:
        far: times after `cached` rows; near: times after so few rows that they take no time.
    """
    return {rows: short(1e3 * max(far[rows] - near[rows], 0.0)) for rows in far if cached}
