"""A profile of this machine for one model, and how much agents slow each other down on its cores."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.synchronize import Event

import torch

from flowedge.device.memory import read_memory_of
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import OpenCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import payload_dtype, torch_dtype
from flowedge.planning.measuring.added_times import measure_added_times
from flowedge.planning.measuring.layer_timing import forward_job, median_s
from flowedge.planning.measuring.profiler import model_times, without_graphs
from flowedge.planning.profile.device import DeviceProfile, SharedCores
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measured_profiles import model_profile
from flowedge.planning.profile.measurement import MeasureOptions
from flowedge.planning.profile.model import ModelProfile
from flowedge.strategies.choice import STRATEGIES
from flowedge_testbed.profiles import library

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


BASE = "x86-2core"  # its roofline continues the measured tables
# What loopback takes is a part of `receive_ms` and `mib_ms`.
LOOPBACK = LinkProfile(title="loopback", source="no network", mbps=1e6, latency_ms=0)


def machine_profile(options: MeasureOptions) -> tuple[DeviceProfile, ModelProfile]:
    """Measure this machine with one thread, as an agent of a local pipeline computes.

    Raises:
        FlowEdgeError: when the model cannot be measured.
    """
    torch.set_num_threads(options.threads)
    available = read_memory_of(options.compute).available
    found = model_times(
        options,
        Checkpoint.open(options.model),
        torch.device(options.compute),
        available,
        lambda _: None,
        without_graphs,
    )
    added = measure_added_times(
        found.times.hidden, payload_dtype(torch_dtype(options.dtype)), STRATEGIES, lambda _: None
    )
    measured = {"added": added, "measured": found.times, "shared_cores": shared_cores(options)}
    return library.device(BASE).model_copy(update=measured), model_profile(found)
