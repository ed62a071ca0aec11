"""A profile of this machine for one model, as `flowedge profile` measures it."""

from __future__ import annotations

import torch

from flowedge.device.memory import read_memory_of
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.tensors import payload_dtype, torch_dtype
from flowedge.profiling.device.profiler import model_times, without_graphs
from flowedge.profiling.documents.device import DeviceProfile
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import ModelProfile
from flowedge.profiling.measured_profiles import model_profile
from flowedge.profiling.measurement import MeasureOptions
from flowedge.profiling.rehearsal.added_times import measure_added_times
from flowedge_testbed.profiles import library
from testbed.tools.live_truth.sharing import shared_cores

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
    added = measure_added_times(found.times.hidden, payload_dtype(torch_dtype(options.dtype)), lambda _: None)
    measured = {"added": added, "measured": found.times, "shared_cores": shared_cores(options)}
    return library.device(BASE).model_copy(update=measured), model_profile(found)
