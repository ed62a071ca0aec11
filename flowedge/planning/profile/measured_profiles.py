"""Profiles made from measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.profile.device import DeviceProfile, MeasuredQuantisations
from flowedge.planning.profile.link import LinkProfile
from flowedge.planning.profile.measurement import (
    DeviceMeasurement,
    LayerTime,
    LinkMeasurement,
    ModelTimes,
    milliseconds,
    short,
)
from flowedge.planning.profile.model import (
    DTYPE_BYTES,
    LayerSize,
    LayerSizes,
    ModelProfile,
)
from flowedge.planning.profile.roofline_fit import LayerSample, Roofline, fit_roofline, fit_unpacking

HIDDEN: Final = "hidden"  # the time of unpacking, behind its memory traffic
UNPACKED: Quantisation = "nf4"  # more than one row is multiplied with a matrix that is unpacked before
CONSTANTS = {
    "memory_bandwidth_gb_s": "GB/s",
    "tflops": "TFLOPS",
    "layer_overhead_ms": "overhead ms",
    "dequantise_gweights_s": "4-bit Gweights/s",
    "measured.draft": "draft layer",
}  # names of a profile's keys in tables
BOUNDS = ("memory_bandwidth_gb_s", "tflops")  # keys whose value is a lower bound where it is no measurement
DRAFT_VOCAB = 32_000  # of published EAGLE-3 heads


@dataclass(frozen=True)
class FittedDevice:
    """A device's profile, and the roofline in it with its error."""

    profile: DeviceProfile
    roofline: Roofline

    def constant(self, key: str) -> str:
        """Return a constant of the profile for people; `reasons` says why it may be no number."""
        value = getattr(self.profile, key)
        if key not in (self.profile.not_measured or {}):
            return f"{value:.3g}"
        return f"at least {value:.3g}" if key in BOUNDS else "not measured"

    @property
    def reasons(self) -> list[str]:
        """Why values of the profile are no measurements or are missing, each as a line."""
        found = self.profile.not_measured or {}
        return [f"{CONSTANTS.get(key, key)}: {reason}" for key, reason in found.items()]


def device_profile(found: DeviceMeasurement) -> FittedDevice:
    """Return the profile of a measured device.

    Raises:
        BadRequestError: when there are too few times to fit a roofline.
    """
    roofline = fit_roofline(_samples(found, found.layers))
    four_bit = _samples(found, [time for time in found.quantised.get(UNPACKED, ()) if time.rows > 1])
    unpacked: float | Literal["hidden"] | None = None
    if four_bit:
        rate = fit_unpacking(four_bit, _samples(found, found.layers), roofline)
        unpacked = HIDDEN if rate is None else short(rate / 1e9)
    profile = DeviceProfile(
        title=f"{found.name} ({found.kind})",
        source=_source(found, roofline),
        memory_gib=short(found.memory_available / 2**30),
        memory_bandwidth_gb_s=short(roofline.bytes_per_s / 1e9),
        memory_efficiency=1,
        tflops=short(roofline.flops / 1e12),
        layer_overhead_ms=short(roofline.overhead_s * 1e3),
        dequantise_gweights_s=unpacked,
        added=found.added,
        measured=found.model.times,
        quantised=_quantised(found),
        not_measured=_not_measured(found, roofline, unpacked) or None,
    )
    return FittedDevice(profile, roofline)


def _not_measured(
    found: DeviceMeasurement, roofline: Roofline, unpacked: float | Literal["hidden"] | None
) -> dict[str, str]:
    """Return why a value of the profile is no measurement, or is missing, by its key."""
    reasons = {f"quantised.{quant}": problem for quant, problem in found.quant_problems.items()}
    unlimited = "not measured beyond a lower bound, since ten times as much fits the times of layers too"
    if roofline.bytes_per_s_is_bound:
        reasons["memory_bandwidth_gb_s"] = unlimited
    if roofline.flops_is_bound:
        reasons["tflops"] = unlimited
    if roofline.overhead_s == 0:
        reasons["layer_overhead_ms"] = "not measured, since the times of layers show no overhead"
    if unpacked == HIDDEN:
        reasons["dequantise_gweights_s"] = "not measured, since it is hidden behind memory traffic"
    elif unpacked is None:
        problem = found.quant_problems.get(UNPACKED, "none was timed")
        reasons["dequantise_gweights_s"] = f"not measured, for want of layers in {UNPACKED} ({problem})"
    if found.model.times.draft is None:
        reasons["measured.draft"] = "not measured, since no drafter with weights was given"
    return reasons


def link_profile(sender: str, receiver: str, found: LinkMeasurement) -> LinkProfile:
    return LinkProfile(
        title=f"{sender} to {receiver}",
        source=(
            f"Measured by `flowedge profile` between agents: the rate by {found.bytes / 1e6:.3g} MB over one "
            "gRPC stream, at the receiver, after a warm-up; the latency is half of the median of "
            f"{len(found.round_trips)} TCP handshakes, without the software of the agents. "
            "Jitter was not measured."
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
    graphs = " with CUDA graphs" if model.times.layer_by_layer_ms else ""
    return (
        f"Measured by `flowedge profile` (FlowEdge {found.version}, torch {found.torch_version}) on "
        f"{found.kind}, {found.processor}, {_count(found.threads, 'thread')}, in {found.dtype}{graphs}, "
        f"medians of {found.repeats}: the constants reproduce the times of generic layers within "
        f"{roofline.error:.0%} (rms); `measured` holds for {model.model}, timed on a block of "
        f"{_count(model.timed_layers, 'layer')} after {model.times.cached_rows} cached rows; "
        "memory is the memory that was available; the bandwidth is what reading weights reached, so that "
        "memory_efficiency is 1."
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
