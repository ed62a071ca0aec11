"""A device is measured as its agent computes, over static tensors, and layer by layer beside that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flowedge.cli.screens.profile_screen import LAYER_BY_LAYER, show_profiles
from flowedge.device.compute import DeviceProbe
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding
from flowedge.planning.measuring import added_times, layer_timing, profiler
from flowedge.planning.measuring.generic_layers import generic_block, llama_like
from flowedge.planning.measuring.layer_timing import RECORDING_RUNS, compared_times, layer_times
from flowedge.planning.measuring.profiler import _quantised_times
from flowedge.planning.measuring.run import Profiled
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.measured_profiles import FittedDevice, device_profile, model_profile
from flowedge.planning.profile.measurement import DeviceMeasurement, MeasureOptions
from flowedge.planning.profile.model import ExpertSizes, LayerSize, LayerSizes
from flowedge.planning.profile.roofline_fit import Roofline
from flowedge.planning.roofline import product_s
from tests.models.cuda_graphs.static_pipeline import CountingMaker, RefusingMaker, decode_statically
from tests.models.tiny_families import make_tiny

ROWS = (1, 8, 100)
OPTIONS = MeasureOptions(model="bundled", repeats=1, stack_mib=4)


@contextmanager
def quick_profile() -> Iterator[None]:
    """Make a profile quick: three numbers of rows, small layers in two quantisations, and short texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiler, "ROWS", ROWS)
        patch.setattr(profiler, "COMPARED", ("none", "w8a16"))
        patch.setattr(profiler, "COMPARED_HIDDEN", {"cpu": 256})
        patch.setattr(added_times, "PLAIN_TOKENS", 20)
        patch.setattr(added_times, "STRATEGY_TOKENS", 8)
        yield


@pytest.fixture
def few_layers() -> Iterator[None]:
    with quick_profile():
        yield


@pytest.fixture(scope="module")
def found() -> DeviceMeasurement:
    """A measurement without CUDA graphs."""
    with quick_profile():
        return measured(OPTIONS.model_copy(update={"cuda_graphs": False}))


def small_block() -> LayerBlock:
    return generic_block(llama_like(64), 2, torch.float32, torch.device("cpu"))


def measured(options: MeasureOptions) -> DeviceMeasurement:
    def capture(block: LayerBlock) -> None:
        decode_statically(block, uncaptured=1)

    return profiler.profile_device(options, "board", "a board", lambda _: None, capture)


@pytest.mark.proof
def test_a_model_whose_heads_are_wider_than_its_hidden_size_has_a_profile(
    few_layers: None, tmp_path: Path
) -> None:
    model = make_tiny(tmp_path / "gemma", "gemma3")
    found = measured(OPTIONS.model_copy(update={"model": str(model), "cuda_graphs": False}))
    sizes = model_profile(found.model)
    assert (sizes.hidden, sizes.heads, sizes.head_dim) == (32, 4, 16)
    layer = LayerBlock.load(Checkpoint.open(str(model)), 1, 2).layers[0]
    matrices = [each for each in layer.parameters() if each.dim() == 2]
    assert LayerSize.of(sizes).weights == sum(each.numel() for each in matrices)


def test_layers_of_a_mixture_are_timed_as_if_their_experts_were_chosen_evenly() -> None:
    sizes = LayerSizes(
        hidden=64, intermediate=32, heads=4, kv_heads=2, experts=ExpertSizes(count=16, chosen=2)
    )
    block = generic_block(sizes, 2, torch.float32, torch.device("cpu"), exact=True)
    for layer in block.layers:
        matrices = [each for each in layer.parameters() if each.dim() == 2]
        assert LayerSize(**sizes.model_dump()).weights == sum(each.numel() for each in matrices)
        _, chosen = layer.mlp.gate(torch.randn(512, 64))
        times = torch.bincount(chosen.flatten(), minlength=16)
        assert times.min() > 0 and times.max() < 1024 / 4
    assert layer_times(block, [1, 3], 4, 1, lambda _: None).keys() == {1, 3}


def test_all_layers_are_timed_in_both_ways(
    few_layers: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    found = measured(OPTIONS)
    fitted = device_profile(found)
    profile = fitted.profile
    assert profile.measured is not None
    assert profile.quantised is not None
    assert profile.quantised.layer_by_layer_ms is not None
    assert profile.measured.layer_by_layer_ms is not None
    for used, other in [
        (profile.measured.layer_ms, profile.measured.layer_by_layer_ms),
        *((profile.quantised.layer_ms[q], profile.quantised.layer_by_layer_ms[q]) for q in ("none", "w8a16")),
    ]:
        assert [*used] == [*other] == [*ROWS]
    assert "with CUDA graphs" in profile.source
    assert all(time.layer_by_layer for time in found.layers)
    show_profiles(Profiled((FittedDevice(profile, fitted.roofline),), (), tmp_path))
    printed = capsys.readouterr().out
    assert f"w8a16, {LAYER_BY_LAYER}" in printed
    assert printed.count(LAYER_BY_LAYER) == 3
    assert "not measured" in printed.splitlines()[1], "no layer in nf4 was timed, so nothing unpacks"
    why = "4-bit Gweights/s: not measured, for want of layers in nf4 (none was timed)"
    assert f"{profile.title}: {why}" in printed
    assert f"{profile.title}: draft layer: not measured, since no drafter with weights was given" in printed


@pytest.mark.proof
def test_unpacking_too_fast_to_be_seen_is_no_number(found: DeviceMeasurement) -> None:
    at_once = tuple(time.model_copy(update={"seconds": 1e-7}) for time in found.quantised["none"])
    fitted = device_profile(found.model_copy(update={"quantised": {**found.quantised, "nf4": at_once}}))
    profile = fitted.profile
    assert profile.dequantise_gweights_s == "hidden"
    assert fitted.constant("dequantise_gweights_s") == "not measured"
    assert "4-bit Gweights/s: not measured, since it is hidden behind memory traffic" in fitted.reasons
    written = profile.model_dump(exclude_none=True, exclude_unset=True)
    assert DeviceProfile.model_validate(written) == profile
    slower = profile.model_copy(update={"dequantise_gweights_s": 1})
    assert product_s(profile, 1e6, 1, "nf4") == pytest.approx(product_s(slower, 1e6, 1, "nf4") - 1e-3)
    refused = found.model_copy(update={"quant_problems": {"nf4": "ImportError: no bitsandbytes"}})
    broken = device_profile(refused)
    assert broken.profile.dequantise_gweights_s is None
    assert "quantised.nf4: ImportError: no bitsandbytes" in broken.reasons


@pytest.mark.parametrize(
    ("key", "changed", "shown"),
    [
        ("tflops", {"flops_is_bound": True}, "at least 2"),
        ("memory_bandwidth_gb_s", {"bytes_per_s_is_bound": True}, "at least 1"),
        ("layer_overhead_ms", {"overhead_s": 0.0}, "not measured"),
        ("layer_overhead_ms", {}, "0.5"),
    ],
)
def test_a_constant_that_no_time_determines_is_told_so(
    found: DeviceMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    changed: dict[str, Any],
    shown: str,
) -> None:
    roofline = replace(Roofline(1e9, 2e12, 5e-4), **changed)
    monkeypatch.setattr("flowedge.planning.profile.measured_profiles.fit_roofline", lambda _: roofline)
    fitted = device_profile(found)
    assert fitted.constant(key) == shown
    assert (key in (fitted.profile.not_measured or {})) == bool(changed)


def test_without_graphs_there_is_one_table(found: DeviceMeasurement) -> None:
    profile = device_profile(found).profile
    assert profile.measured is not None
    assert profile.quantised is not None
    assert profile.measured.layer_by_layer_ms is None
    assert profile.quantised.layer_by_layer_ms is None
    assert set(profile.quantised.layer_ms) == {"none", "w8a16"}
    assert "CUDA graphs" not in profile.source


def test_pieces_are_made_before_the_runs_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_timing, "LEAST_S", 0.0)
    makers: list[CountingMaker] = []
    said: list[str] = []
    block = small_block()
    compared_times(
        block, (1, 8), 20, 4, said.append, lambda own: makers.append(decode_statically(own, uncaptured=1))
    )
    [maker] = makers
    assert maker.made == 2
    assert maker.runs == 2 * (RECORDING_RUNS - 1 + 4), "all but the first run of each number of rows"
    assert said == ["1 rows", "8 rows", "1 rows, CUDA graphs", "8 rows, CUDA graphs"]


def test_a_device_that_cannot_record_has_the_times_layer_by_layer() -> None:
    def refuse(block: LayerBlock) -> None:
        block.decoding = BlockDecoding(block, RefusingMaker())

    times = compared_times(small_block(), (1, 8), 20, 2, lambda _: None, refuse)
    assert [*times.used] == [1, 8]
    assert times.layer_by_layer == {}


def test_a_quantisation_that_broke_the_trial_of_a_gpu_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = dict.fromkeys(profiler.COMPARED, "the trial ended with 1: Error named symbol not found")
    monkeypatch.setattr(profiler, "try_device", lambda device: DeviceProbe(device, quant_problems=broken))
    steps: list[str] = []

    def never(block: LayerBlock) -> None:
        raise AssertionError(f"{block} is not to be recorded")

    times, problems = _quantised_times(
        MeasureOptions(model="bundled"), torch.device("cuda:0"), steps.append, never
    )
    assert not times
    assert problems == broken
    assert steps == [f"layers in {quant}" for quant in profiler.COMPARED]
