"""The measurement of one device."""

from __future__ import annotations

import pytest
import torch

from flowedge.models.layers.block import LayerBlock
from flowedge.profiling.device import profiler
from flowedge.profiling.device.profiler import COMPARED, _quantised_times
from flowedge.profiling.measurement import MeasureOptions
from flowedge.system.compute import DeviceTrial


def test_a_quantisation_that_broke_the_trial_of_a_gpu_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = dict.fromkeys(COMPARED, "the trial ended with 1: Error named symbol not found")
    monkeypatch.setattr(profiler, "try_device", lambda device: DeviceTrial(device, quant_problems=broken))
    steps: list[str] = []

    def never(block: LayerBlock) -> None:
        raise AssertionError(f"{block} is not to be recorded")

    times, problems = _quantised_times(
        MeasureOptions(model="bundled"), torch.device("cuda:0"), steps.append, never
    )
    assert not times
    assert problems == broken
    assert steps == [f"layers in {quant}" for quant in COMPARED]
