"""How much agents slow each other down on the cores of this machine."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event

import torch

from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import OpenCache
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.tensors import torch_dtype
from flowedge.profiling.device.layer_timing import forward_job, median_s
from flowedge.profiling.documents.device import SharedCores
from flowedge.profiling.measurement import MeasureOptions

ROWS = (1, 16)
CACHED = 128
REPEATS = 25
WAIT_S = 0.2


def shared_cores(options: MeasureOptions) -> SharedCores:
    """Measure the model's layers alone, and while as many processes compute them as there are cores."""
    cores = len(os.sched_getaffinity(0))
    alone = _seconds(options)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        for _ in range(cores - 1):
            computing = context.Event()
            other = context.Process(target=_keep_computing, args=(options, computing), daemon=True)
            other.start()
            stack.callback(other.join)
            stack.callback(other.terminate)
            while not computing.wait(WAIT_S):
                if not other.is_alive():
                    raise SystemExit("a process that was to compute has ended")
        together = _seconds(options)
    ratios = [before / after for before, after in zip(alone, together, strict=True)]
    return SharedCores(cores=cores, speed=min(1.0, math.prod(ratios) ** (1 / len(ratios))))


def _forwards(options: MeasureOptions) -> list[Callable[[], object]]:
    """Return a forward of the whole model for each of ROWS."""
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(options.model)
    layers, dtype = int(checkpoint.config.num_hidden_layers), torch_dtype(options.dtype)
    block = LayerBlock.load(checkpoint, 0, layers, dtype=dtype, exact=True)
    executor = BlockExecutor(block)
    jobs = [forward_job(block, rows, CACHED) for rows in ROWS]
    executor.run(OpenCache(jobs[0].forwards[0].session, CACHED + max(ROWS)))
    return [lambda job=job: executor.run(job) for job in jobs]  # type: ignore[misc]


def _seconds(options: MeasureOptions) -> list[float]:
    return [median_s(forward, REPEATS) for forward in _forwards(options)]


def _keep_computing(options: MeasureOptions, computing: Event) -> None:
    forwards, parent = _forwards(options), os.getppid()
    while os.getppid() == parent:
        for forward in forwards:
            forward()
        computing.set()
        time.sleep(0)
