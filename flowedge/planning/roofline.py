"""The roofline of a device: what matrix products, attention, layers and LM heads take on it, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.core.pipeline_config import Quantisation
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.model import STORED_BYTES, LayerSize, weight_bytes

LOGIT_BYTES = 4
UNPACKED = frozenset({"nf4", "fp4", "nf4-dq", "fp4-dq"})  # weights are unpacked for every product


def product_s(
    device: DeviceProfile,
    weights: float,
    rows: int,
    quant: Quantisation = "none",
    extra_bytes: float = 0.0,
    stored_bytes: int = STORED_BYTES,
    weights_of_row: float | None = None,
) -> float:
    """Return the seconds that `rows` rows take through matrices of `weights` weights in all.

    bitsandbytes unpacks every 4-bit weight: inside the product for one row. For more rows it writes whole
    matrices out in 16 bits and reads them back. An int4 product reads packed weights for any number of rows.

    Args:
        extra_bytes: further memory traffic, such as the KV rows that attention reads.
        stored_bytes: of a weight that is not quantised.
        weights_of_row: by which each row is multiplied; None for all.
    """
    traffic = weights * weight_bytes(quant, stored_bytes) + extra_bytes
    unpacking = 0.0
    if quant in UNPACKED:
        unpacking = _unpacking_s(device, weights)
        if rows > 1:
            traffic += 2 * weights * stored_bytes
    compute = 2 * rows * (weights if weights_of_row is None else weights_of_row) / device.flops
    return max(traffic / device.bytes_per_s, compute) + unpacking


def _unpacking_s(device: DeviceProfile, weights: float) -> float:
    """Return the seconds that unpacking takes beyond its memory traffic."""
    rate = device.dequantise_gweights_s
    if rate is None:
        raise ValueError(f"{device.title} has no dequantise_gweights_s, so it runs no quantised weights")
    return 0.0 if rate == "hidden" else weights / (rate * 1e9)


def layer_s(device: DeviceProfile, layer: LayerSize, rows: int, seen: int, quant: Quantisation) -> float:
    """Return the seconds of one decoder layer over `rows` rows, each of which sees `seen` cached rows."""
    return batch_layer_s(device, layer, [(rows, seen)], quant)


def batch_layer_s(
    device: DeviceProfile, layer: LayerSize, parts: Sequence[tuple[int, int]], quant: Quantisation
) -> float:
    """Return the seconds of one decoder layer over the rows of several sessions together.

    The weights are read once for all rows, of experts those that the rows touch. Each session adds its KV
    rows and its attention, or the updates of its state.

    Args:
        parts: for each session its rows, and the cached rows that each of them sees; for a layer with a state
            the rows, and the updates of the session's state.
    """
    rows = sum(rows for rows, _ in parts)
    kv = sum(seen for _, seen in parts) * layer.kv_bytes_per_row
    read, own = layer.weights_read(rows), layer.weights_of_row
    products = product_s(device, read, rows, quant, kv, layer.stored_bytes, own)
    attention = sum(attention_s(device, layer, rows, seen) for rows, seen in parts)
    return products + attention + device.layer_overhead_ms / 1e3


def head_s(
    device: DeviceProfile,
    weights: int,
    vocab: int,
    rows: int,
    stored_bytes: int,
    quant: Quantisation = "none",
) -> float:
    """Return the seconds of an LM head: its weights are read once, its logits are written and read."""
    logits = 2 * LOGIT_BYTES * vocab * rows
    return product_s(device, weights, rows, quant, logits, stored_bytes) + device.layer_overhead_ms / 1e3


def attention_s(device: DeviceProfile, layer: LayerSize, rows: int, seen: int) -> float:
    """Return the seconds of attention's arithmetic: two products for each row and each row seen.

    Of a layer with a state, it is `seen` updates, each of which reads and writes the state.
    """
    if layer.recurs and layer.states is not None:
        arithmetic = layer.states.step_operations / device.flops
        return seen * max(arithmetic, 2 * layer.state_bytes / device.bytes_per_s)
    return 4 * rows * seen * layer.query_width / device.flops
