"""Fits the constants of a device's roofline to times of layers; pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.model import LayerSize, weight_bytes

_HIGHER, _AS_WELL = 10.0, 1.05  # a rate so many times as high; errors up to so many times as large

Array = npt.NDArray[np.float64]

FASTEST_UNPACKING = 1e12  # weights per second; faster unpacking cannot be told from none


@dataclass(frozen=True)
class LayerSample:
    """The time of a decoder layer over `rows` rows, each of which sees `seen` rows, itself included."""

    layer: LayerSize
    rows: int
    seen: int
    seconds: float

    @property
    def traffic(self) -> float:
        """Bytes read: unquantised weights and KV rows."""
        return self.layer.weights * self.layer.stored_bytes + self.kv_bytes

    @property
    def kv_bytes(self) -> float:
        return self.seen * self.layer.kv_bytes_per_row

    @property
    def operations(self) -> float:
        """Operations of the products with weights."""
        return 2 * self.rows * self.layer.weights

    @property
    def intensity(self) -> float:
        return self.operations / self.traffic

    @property
    def attention(self) -> float:
        """Operations of attention."""
        return 4 * self.rows * self.seen * self.layer.query_width


@dataclass(frozen=True)
class Roofline:
    """A layer takes max(traffic / bytes_per_s, operations / flops) + attention / flops + overhead_s.

    Attributes:
        error: root mean square of the relative errors over the samples of the fit.
        bytes_per_s_is_bound, flops_is_bound: whether a rate ten times as high fits the samples as well. Then
            the rate is a lower bound.
    """

    bytes_per_s: float
    flops: float
    overhead_s: float
    error: float = 0.0
    bytes_per_s_is_bound: bool = False
    flops_is_bound: bool = False

    def seconds(self, sample: LayerSample) -> float:
        """Return the time that the roofline predicts for a sample."""
        products = max(sample.traffic / self.bytes_per_s, sample.operations / self.flops)
        return products + sample.attention / self.flops + self.overhead_s


def fit_roofline(samples: Sequence[LayerSample]) -> Roofline:
    """Return the roofline with the least sum of squared errors, each relative to the measured time.

    Errors are relative so that small layers, which show the overhead, count as much as large layers.

    A sample is bound by memory when its intensity is below flops / bytes_per_s. Once it is fixed which
    samples are bound by memory, the problem is linear in 1/bytes_per_s, 1/flops and the overhead. So it is
    solved exactly for every possible border between intensities, with the overhead free and with the
    overhead 0. The solution with the least error of the full model, with its maximum, is returned. Where no
    sample is bound by arithmetic, or no sample by memory, that rate is a lower bound: the least rate for
    which this is so.

    Raises:
        BadRequestError: when there are fewer than three samples.
    """
    if len(samples) < 3:
        raise BadRequestError(f"{len(samples)} times do not determine a roofline; measure three or more")
    knees = [0.0, *sorted({sample.intensity for sample in samples})]
    solved = [found for knee in knees for found in _solutions(samples, knee)]
    judged = [(_error(samples, found), found) for found in solved]
    error, best = min(judged, key=lambda pair: pair[0])
    fits_as_well = error * _AS_WELL + 1e-4
    return replace(
        best,
        error=error,
        bytes_per_s_is_bound=_error(samples, replace(best, bytes_per_s=_HIGHER * best.bytes_per_s))
        < fits_as_well,
        flops_is_bound=_error(samples, replace(best, flops=_HIGHER * best.flops)) < fits_as_well,
    )


def fit_unpacking(
    samples: Sequence[LayerSample], plain: Sequence[LayerSample], roofline: Roofline
) -> float | None:
    """Return how many weights per second are unpacked from 4 bits, without the memory traffic of unpacking.

    The time of a layer in nf4 over two rows or more is modelled as the sum of three parts: the time of the
    same layer with unquantised weights; the extra time by the roofline for writing every matrix and reading
    it back (see costs.product_s); and weights / rate. The rate with the least sum of squared relative errors
    over `samples` is returned. None if it is above FASTEST_UNPACKING, since no time tells it from any other.

    Args:
        plain: times of unquantised layers; where a layer is missing, the roofline's time is used.

    Raises:
        BadRequestError: when there are no samples.
    """
    if not samples:
        raise BadRequestError("no times of layers in 4 bits to fit to")
    unpacked = {(sample.layer, sample.rows, sample.seen): sample.seconds for sample in plain}
    known = []
    for sample in samples:
        layer = sample.layer
        traffic = layer.weights * (weight_bytes("nf4") + 2 * layer.stored_bytes) + sample.kv_bytes
        products = max(traffic / roofline.bytes_per_s, sample.operations / roofline.flops)
        predicted = products + sample.attention / roofline.flops + roofline.overhead_s
        bias = unpacked.get((layer, sample.rows, sample.seen), roofline.seconds(sample))
        known.append(predicted + bias - roofline.seconds(sample))
    measured = np.array([sample.seconds for sample in samples])
    share = np.array([sample.layer.weights for sample in samples]) / measured
    left = 1 - np.array(known) / measured
    seconds_per_weight = float(share @ left / (share @ share))
    return None if seconds_per_weight <= 1 / FASTEST_UNPACKING else 1 / seconds_per_weight


def _solutions(samples: Sequence[LayerSample], knee: float) -> list[Roofline]:
    """Solve with and without an overhead, with samples of an intensity up to `knee` bound by memory."""
    found = []
    bound = np.array([sample.intensity <= knee for sample in samples])
    for with_overhead in (True, False):
        columns = _columns(samples, bound)
        used = [0] * bool(bound.any()) + [1] * bool((~bound).any()) + [2] * with_overhead
        solution = np.zeros(3)
        solution[used] = _least_squares(columns[:, used])
        per_byte, per_operation, overhead = (float(value) for value in solution)
        if not bound.any():
            per_byte = min(sample.operations / sample.traffic for sample in samples) * per_operation
        if bound.all():
            per_operation = min(sample.traffic / sample.operations for sample in samples) * per_byte
        if per_byte > 0 and per_operation > 0 and overhead >= 0:
            found.append(Roofline(1 / per_byte, 1 / per_operation, overhead))
    return found


def _columns(samples: Sequence[LayerSample], bound: npt.NDArray[np.bool_]) -> Array:
    """Return float64 [n, 3]: seconds per unit of 1/bytes_per_s, 1/flops and overhead, over measured seconds.

    Attention is left out where all samples are bound by memory.
    """
    rows = []
    for sample, by_memory in zip(samples, bound, strict=True):
        attention = 0.0 if bound.all() else sample.attention
        traffic, operations = (sample.traffic, 0) if by_memory else (0, sample.operations)
        rows.append([value / sample.seconds for value in (traffic, operations + attention, 1.0)])
    return np.array(rows)


def _least_squares(columns: Array) -> Array:
    """Return x with the least |columns @ x - 1|; columns are scaled, since their sizes differ widely."""
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    solution: Array = np.linalg.lstsq(columns / scale, np.ones(len(columns)), rcond=None)[0] / scale
    return solution


def _error(samples: Sequence[LayerSample], roofline: Roofline) -> float:
    squares = [(roofline.seconds(sample) / sample.seconds - 1) ** 2 for sample in samples]
    return math.sqrt(sum(squares) / len(squares))
