"""Profiles made from measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.profiling.documents.device import DeviceProfile, MeasuredQuantisations
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import (
    DTYPE_BYTES,
    LayerSize,
    LayerSizes,
    ModelProfile,
    Quantisation,
)
from flowedge.profiling.documents.roofline_fit import LayerSample, Roofline, fit_roofline, fit_unpacking
from flowedge.profiling.measurement import (
    DeviceMeasurement,
    LayerTime,
    LinkMeasurement,
    ModelTimes,
    milliseconds,
    short,
)

UNPACKED: Quantisation = "nf4"  # more than one row is multiplied with a matrix that is unpacked before
DRAFT_VOCAB = 32_000  # of published EAGLE-3 heads


@dataclass(frozen=True)
class FittedDevice:
    """A device's profile, and the roofline in it with its error."""

    profile: DeviceProfile
    roofline: Roofline


def device_profile(found: DeviceMeasurement) -> FittedDevice:
    """Return the profile of a measured device.

    Raises:
        BadRequestError: when there are too few times to fit a roofline.
    """
    roofline = fit_roofline(_samples(found, found.layers))
    four_bit = _samples(found, [time for time in found.quantised.get(UNPACKED, ()) if time.rows > 1])
    unpacked = fit_unpacking(four_bit, _samples(found, found.layers), roofline) if four_bit else None
    profile = DeviceProfile(
        title=f"{found.name} ({found.kind})",
        source=_source(found, roofline),
        memory_gib=short(found.memory_available / 2**30),
        memory_bandwidth_gb_s=short(roofline.bytes_per_s / 1e9),
        memory_efficiency=1,
        tflops=short(roofline.flops / 1e12),
        layer_overhead_ms=short(roofline.overhead_s * 1e3),
        dequantise_gweights_s=None if unpacked is None else short(unpacked / 1e9),
        measured=found.model.times,
        quantised=_quantised(found),
    )
    return FittedDevice(profile, roofline)


def link_profile(sender: str, receiver: str, found: LinkMeasurement) -> LinkProfile:
    return LinkProfile(
        title=f"{sender} to {receiver}",
        source=(
            f"Measured by `flowedge profile` between agents: the rate by {found.bytes / 1e6:.3g} MB over one "
            f"gRPC stream, at the receiver, after a warm-up; the latency is half of the median of "
            f"{len(found.round_trips)} round trips of small messages on an open stream."
        ),
        mbps=short(found.bits_per_s / 1e6),
        latency_ms=short(statistics.median(found.round_trips) / 2 * 1e3),
    )


def model_profile(found: ModelTimes) -> ModelProfile:
    """Return the sizes of the measured model, with EAGLE heads as its drafters."""
    times = found.times
    return ModelProfile.model_validate(
        {
            "title": found.model,
            "source": f"config.json of {found.model}; weights and hidden states in {times.dtype}",
            "layers": found.num_layers,
            **times.model_dump(include={*LayerSizes.model_fields, "vocab", "dtype"}),
            "tied_embedding": found.tied_embedding,
            "drafters": {
                "eagle": {"kind": "eagle"},
                "eagle3": {"kind": "eagle3", "draft_vocab": min(DRAFT_VOCAB, times.vocab)},
            },
        }
    )


def _source(found: DeviceMeasurement, roofline: Roofline) -> str:
    model = found.model
    problems = "; ".join(f"{quant}: {problem}" for quant, problem in found.quant_problems.items())
    quantised = f" Not measured: {problems}." if problems else ""
    graphs = " with CUDA graphs" if model.times.layer_by_layer_ms else ""
    return (
        f"Measured by `flowedge profile` (FlowEdge {found.version}, torch {found.torch_version}) on "
        f"{found.kind}, {found.processor}, {_count(found.threads, 'thread')}, in {found.dtype}{graphs}, "
        f"medians of {found.repeats}: the constants reproduce the times of generic layers within "
        f"{roofline.error:.0%} (rms); `measured` holds for {model.model}, timed on a block of "
        f"{_count(model.timed_layers, 'layer')} after {model.times.cached_rows} cached rows; "
        f"memory is the memory that was available.{quantised}"
    )


def _quantised(found: DeviceMeasurement) -> MeasuredQuantisations | None:
    """Return the times of a layer in each quantisation; None where none was measured."""
    sizes = next((times[0].sizes for times in found.quantised.values() if times), None)
    if sizes is None:
        return None
    layer_by_layer = {
        quant: milliseconds({time.rows: time.layer_by_layer for time in times if time.layer_by_layer})
        for quant, times in found.quantised.items()
    }
    return MeasuredQuantisations(
        **sizes.model_dump(),
        dtype=found.dtype,
        layer_ms={
            quant: milliseconds({time.rows: time.seconds for time in times})
            for quant, times in found.quantised.items()
        },
        layer_by_layer_ms={quant: times for quant, times in layer_by_layer.items() if times} or None,
    )


def _samples(found: DeviceMeasurement, times: Sequence[LayerTime]) -> list[LayerSample]:
    stored = DTYPE_BYTES[found.dtype]
    return [
        LayerSample(
            LayerSize(**time.sizes.model_dump(), stored_bytes=stored),
            time.rows,
            time.cached + time.rows,
            time.seconds,
        )
        for time in times
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
