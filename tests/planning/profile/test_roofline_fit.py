"""A fit gives back the constants that its data was made from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.model import LayerSize
from flowedge.planning.profile.roofline_fit import (
    LayerSample,
    fit_roofline,
    fit_unpacking,
)
from flowedge.planning.roofline import layer_s

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = [
    LayerSize(hidden=width, intermediate=width * 11 // 4, heads=heads, kv_heads=heads, stored_bytes=4)
    for width, heads in ((256, 4), (1024, 16), (2048, 32))
]
CACHED = 256


def device(gb_s: float, tflops: float, overhead_ms: float, unpacked: float | None = None) -> DeviceProfile:
    return DeviceProfile(
        title="made up", source="", memory_gib=1, memory_bandwidth_gb_s=gb_s, memory_efficiency=1,
        tflops=tflops, layer_overhead_ms=overhead_ms, dequantise_gweights_s=unpacked,
    )  # fmt: skip


def samples(made: DeviceProfile, rows: Sequence[int] = ROWS, noise: float = 0.0) -> list[LayerSample]:
    """What the cost table itself says of layers on the device, a share too long and too short by turns."""
    found = []
    for index, (layer, count) in enumerate((layer, count) for layer in SIZES for count in rows):
        seconds = layer_s(made, layer, count, CACHED + count, "none") * (1 + noise * (-1) ** index)
        found.append(LayerSample(layer, count, CACHED + count, seconds))
    return found


@pytest.mark.parametrize(
    ("gb_s", "tflops", "overhead_ms"), [(14, 0.08, 0.25), (68, 2, 0.3), (10, 0.05, 0), (200, 0.9, 0.01)]
)
def test_the_constants_are_recovered(gb_s: float, tflops: float, overhead_ms: float) -> None:
    found = fit_roofline(samples(device(gb_s, tflops, overhead_ms)))
    assert found.bytes_per_s == pytest.approx(gb_s * 1e9, rel=1e-6)
    assert found.flops == pytest.approx(tflops * 1e12, rel=1e-6)
    assert found.overhead_s == pytest.approx(overhead_ms / 1e3, rel=1e-6, abs=1e-9)
    assert found.error < 1e-6
    assert not (found.bytes_per_s_is_bound or found.flops_is_bound)


def test_noise_moves_them_little_and_shows_as_the_error() -> None:
    found = fit_roofline(samples(device(14, 0.08, 0.25), noise=0.05))
    assert found.bytes_per_s == pytest.approx(14e9, rel=0.06)
    assert found.flops == pytest.approx(0.08e12, rel=0.06)
    assert found.overhead_s == pytest.approx(0.25e-3, rel=0.1)
    assert 0.02 < found.error < 0.06


def test_a_rate_that_never_binds_is_a_lower_bound() -> None:
    fast = device(68, 60, 0.3)  # arithmetic binds from about 2,000 rows on
    found = fit_roofline(samples(fast))
    assert found.bytes_per_s == pytest.approx(68e9, rel=0.01)
    assert 0 < found.flops <= 60e12
    assert found.error < 0.02
    assert (found.bytes_per_s_is_bound, found.flops_is_bound) == (False, True)
    slow = fit_roofline(samples(device(1000, 0.05, 0.1), rows=(8, 16, 64)))
    assert slow.flops == pytest.approx(0.05e12, rel=1e-6)
    assert 0 < slow.bytes_per_s <= 1000e9
    assert (slow.bytes_per_s_is_bound, slow.flops_is_bound) == (True, False)


def test_times_that_make_no_sense_are_refused_or_show_as_the_error() -> None:
    made = samples(device(14, 0.08, 0.25))
    with pytest.raises(BadRequestError, match="three or more"):
        fit_roofline(made[:2])
    backwards = [
        LayerSample(a.layer, a.rows, a.seen, b.seconds) for a, b in zip(made, reversed(made), strict=True)
    ]
    assert fit_roofline(backwards).error > 0.5


def test_the_rate_of_unpacking_is_recovered() -> None:
    made = device(14, 0.08, 0.25, unpacked=3)
    plain = samples(made)
    packed = [
        LayerSample(SIZES[1], rows, CACHED + rows, layer_s(made, SIZES[1], rows, CACHED + rows, "nf4"))
        for rows in (2, 16, 64)
    ]
    roofline = fit_roofline(plain)
    assert fit_unpacking(packed, plain, roofline) == pytest.approx(3e9, rel=1e-6)
    assert fit_unpacking(packed, [], roofline) == pytest.approx(3e9, rel=1e-6)
    # A device whose plain layers take 20 % longer than the roofline has: its bias is not taken for unpacking.
    biased = [LayerSample(s.layer, s.rows, s.seen, s.seconds * 1.2) for s in plain]
    slower = [
        LayerSample(s.layer, s.rows, s.seen, s.seconds + 0.2 * layer_s(made, s.layer, s.rows, s.seen, "none"))
        for s in packed
    ]
    assert fit_unpacking(slower, biased, roofline) == pytest.approx(3e9, rel=1e-6)


def test_unpacking_that_takes_no_time_has_no_rate() -> None:
    made = device(14, 0.08, 0.25)
    plain = samples(made)
    assert fit_unpacking(plain, plain, fit_roofline(plain)) is None, "no number stands for no time"
    with pytest.raises(BadRequestError, match="4 bits"):
        fit_unpacking([], plain, fit_roofline(plain))
