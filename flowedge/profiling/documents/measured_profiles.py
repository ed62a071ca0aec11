"""Profiles made from measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.device import DeviceProfile, MeasuredDraftTimes, MeasuredTimes
from flowedge.profiling.documents.link import LinkProfile
from flowedge.profiling.documents.model import DTYPE_BYTES, LayerSize, ModelProfile
from flowedge.profiling.documents.roofline_fit import LayerSample, Roofline, fit_roofline, fit_unpacking
from flowedge.profiling.measurement import DeviceMeasurement, LayerTime, LinkMeasurement, ModelTimes

DIGITS = 4  # significant digits that are written
DRAFT_VOCAB = 32_000  # of published EAGLE-3 heads


@dataclass(frozen=True)
class FittedDevice:
    """A device's profile, and the roofline in it with its error."""

    profile: DeviceProfile
    roofline: Roofline


def device_profile(found: DeviceMeasurement) -> FittedDevice:
    """Return the profile of a measured device.

    Raises:
        BadRequestError: when there are too few times to fit a roofline, or profiles do not have the dtype.
    """
    if found.dtype not in DTYPE_BYTES:
        raise BadRequestError(f"{found.name} was measured in {found.dtype}, which profiles do not have")
    roofline = fit_roofline(_samples(found, found.layers))
    four_bit = _samples(found, found.four_bit)
    unpacked = fit_unpacking(four_bit, _samples(found, found.layers), roofline) if four_bit else None
    profile = DeviceProfile(
        title=f"{found.name} ({found.kind})",
        source=_source(found, roofline),
        memory_gib=_short(found.memory_available / 2**30),
        memory_bandwidth_gb_s=_short(roofline.bytes_per_s / 1e9),
        memory_efficiency=1,
        tflops=_short(roofline.flops / 1e12),
        layer_overhead_ms=_short(roofline.overhead_s * 1e3),
        dequantise_gweights_s=None if unpacked is None else _short(unpacked / 1e9),
        measured=_measured(found),
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
        mbps=_short(found.bits_per_s / 1e6),
        latency_ms=_short(statistics.median(found.round_trips) / 2 * 1e3),
    )


def model_profile(times: ModelTimes, dtype: str) -> ModelProfile:
    """Return the sizes of the measured model, with EAGLE heads as its drafters."""
    return ModelProfile.model_validate(
        {
            "title": times.model,
            "source": f"config.json of {times.model}; weights and hidden states in {dtype}",
            "layers": times.num_layers,
            **times.sizes.model_dump(),
            "vocab": times.vocab,
            "tied_embedding": times.tied_embedding,
            "dtype": dtype,
            "drafters": {
                "eagle": {"kind": "eagle"},
                "eagle3": {"kind": "eagle3", "draft_vocab": min(DRAFT_VOCAB, times.vocab)},
            },
        }
    )


def _measured(found: DeviceMeasurement) -> MeasuredTimes:
    times = found.model
    draft = times.draft and MeasuredDraftTimes(
        extend_ms=_ms(times.draft.extend),
        grow_ms=_ms(times.draft.grow),
        root_ms=_short(times.draft.root * 1e3),
    )
    return MeasuredTimes.model_validate(
        {
            **times.sizes.model_dump(),
            "vocab": times.vocab,
            "dtype": found.dtype,
            "quant": times.quant,
            "cached_rows": times.cached,
            "layer_ms": _ms(times.layer),
            "verify_ms": _ms(times.verify),
            "draft": draft,
        }
    )


def _source(found: DeviceMeasurement, roofline: Roofline) -> str:
    times = found.model
    four_bit = (
        f" Layers in 4 bits could not be measured ({found.four_bit_problem})."
        if found.four_bit_problem
        else ""
    )
    return (
        f"Measured by `flowedge profile` (FlowEdge {found.version}, torch {found.torch_version}) on "
        f"{found.kind}, {found.processor}, {_count(found.threads, 'thread')}, in {found.dtype}, medians of "
        f"{found.repeats}: the constants reproduce the times of generic layers within "
        f"{roofline.error:.0%} (rms); `measured` holds for {times.model}, timed on a block of "
        f"{_count(times.timed_layers, 'layer')} after {times.cached} cached rows; memory is the memory that "
        f"was available.{four_bit}"
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


def _ms(table: dict[int, float]) -> dict[int, float]:
    return {rows: _short(seconds * 1e3) for rows, seconds in sorted(table.items())}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
