"""The constants of a device's roofline from times of layers; pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowedge.core.errors import BadRequestError
from flowedge.profiling.documents.model import LayerSize, weight_bytes

Array = npt.NDArray[np.float64]

FASTEST_UNPACKING = 1e12  # weights a second: unpacking that takes no time beyond its memory traffic


@dataclass(frozen=True)
class LayerSample:
    """One decoder layer over `rows` rows took `seconds`; a row sees `seen` rows of the cache, its own too."""

    layer: LayerSize
    rows: int
    seen: int
    seconds: float

    @property
    def traffic(self) -> float:
        """Bytes read: weights that are not quantised, and KV rows."""
        return self.layer.weights * self.layer.stored_bytes + self.kv_bytes

    @property
    def kv_bytes(self) -> float:
        return self.seen * self.layer.kv_bytes_per_row

    @property
    def operations(self) -> float:
        """Of the products with weights."""
        return 2 * self.rows * self.layer.weights

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.operations / self.traffic

    @property
    def attention(self) -> float:
        """Operations of attention."""
        return 4 * self.rows * self.seen * self.layer.hidden


@dataclass(frozen=True)
class Roofline:
    """A layer takes max(traffic / bytes_per_s, operations / flops) + attention / flops + overhead_s.

    Attributes:
        error: root mean square of the relative errors over the samples it was fitted to.
    """

    bytes_per_s: float
    flops: float
    overhead_s: float
    error: float = 0.0

    def seconds(self, sample: LayerSample) -> float:
        """What the roofline says of a sample."""
        products = max(sample.traffic / self.bytes_per_s, sample.operations / self.flops)
        return products + sample.attention / self.flops + self.overhead_s


def fit_roofline(samples: Sequence[LayerSample]) -> Roofline:
    """The roofline with the least sum of squared relative errors, ((predicted - measured) / measured)**2.

    Relative, so that small layers, which tell the overhead, count as much as large ones. A sample is bound by
    memory when its intensity, operations for a byte, is below flops / bytes_per_s. So for every intensity
    that may be the last one bound by memory the problem is linear in 1/bytes_per_s, 1/flops and the overhead,
    and is solved exactly, once with the overhead at 0. Of those solutions the one is taken that is best when
    the maximum itself decides. Where no sample is bound by arithmetic, or none by memory, that rate is the
    least one with which this is so: a lower bound.

    There always is one; its error says how much it is worth. BadRequestError for fewer than three samples.
    """
    if len(samples) < 3:
        raise BadRequestError(f"{len(samples)} times do not determine a roofline; measure three or more")
    knees = [0.0, *sorted({sample.intensity for sample in samples})]
    solved = [found for knee in knees for found in _solutions(samples, knee)]
    judged = [(_error(samples, found), found) for found in solved]
    error, best = min(judged, key=lambda pair: pair[0])
    return Roofline(best.bytes_per_s, best.flops, best.overhead_s, error)


def fit_unpacking(samples: Sequence[LayerSample], plain: Sequence[LayerSample], roofline: Roofline) -> float:
    """Weights a second that are unpacked from 4 bits, beyond the memory traffic of doing so.

    A layer in nf4 over two rows or more takes what the same layer takes unpacked, and what the roofline says
    of writing every matrix out and reading it back instead of reading it once (see costs.product_s), and
    weights / rate. The rate has the least sum of squared relative errors of that over `samples`, and is at
    most FASTEST_UNPACKING. `plain` are layers that were not quantised; where the same layer over the same
    rows is not among them, the roofline stands in for it. BadRequestError without samples.
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
    return 1 / max(seconds_per_weight, 1 / FASTEST_UNPACKING)


def _solutions(samples: Sequence[LayerSample], knee: float) -> list[Roofline]:
    """With and without an overhead, when samples of an intensity up to `knee` are those bound by memory."""
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
    """[n, 3]: seconds for each unit of 1/bytes_per_s, 1/flops and overhead, over the seconds measured.

    Attention is left out where nothing else tells the arithmetic.
    """
    rows = []
    for sample, by_memory in zip(samples, bound, strict=True):
        attention = 0.0 if bound.all() else sample.attention
        traffic, operations = (sample.traffic, 0) if by_memory else (0, sample.operations)
        rows.append([value / sample.seconds for value in (traffic, operations + attention, 1.0)])
    return np.array(rows)


def _least_squares(columns: Array) -> Array:
    """x with the least |columns @ x - 1|; columns of very different size are scaled first."""
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    solution: Array = np.linalg.lstsq(columns / scale, np.ones(len(columns)), rcond=None)[0] / scale
    return solution


def _error(samples: Sequence[LayerSample], roofline: Roofline) -> float:
    squares = [(roofline.seconds(sample) / sample.seconds - 1) ** 2 for sample in samples]
    return math.sqrt(sum(squares) / len(squares))
