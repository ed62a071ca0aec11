"""Whether an emulated pipeline fits its devices; one that does not is refused with the sums."""

from __future__ import annotations

from flowedge.errors import CapacityError
from testbed.emulation import Emulation
from testbed.profiles.device import DeviceProfile
from testbed.profiles.model import STORED_BYTES, WEIGHT_BYTES, EagleSize, LayerSize

ACTIVATION_ROWS = 512  # rows whose widest activations are held at once


def stage_parts(emulation: Emulation, stage: int, capacity: int) -> dict[str, float]:
    """Bytes a stage holds, by part; `capacity` is the cache rows of one session."""
    model, layer, count = emulation.model, LayerSize.of(emulation.model), emulation.split[stage]
    parts = {
        f"{count} layers in {'fp16' if emulation.quant == 'none' else emulation.quant}": count
        * layer.weights
        * WEIGHT_BYTES[emulation.quant],
        f"KV of {capacity} rows": float(count * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * model.intermediate * STORED_BYTES),
    }
    if emulation.quant not in ("none", "int4"):
        parts["one matrix in 16 bits"] = float(model.hidden * model.intermediate * STORED_BYTES)
    if stage == 0:
        parts["embedding"] = float(model.vocab * model.hidden * STORED_BYTES)
    return parts


def draft_node_parts(emulation: Emulation, capacity: int) -> dict[str, float]:
    """Bytes the draft node holds, by part."""
    model, drafter = emulation.model, emulation.drafter
    table = model.vocab * model.hidden
    if isinstance(drafter, EagleSize):
        layer, layers, extra = LayerSize.of(model), 1, 2 * model.hidden**2 + table
    else:
        layer, layers, extra = LayerSize.of(drafter), drafter.layers, 2 * drafter.vocab * drafter.hidden
    return {
        "LM head": float(table * STORED_BYTES),
        "drafter": float((layers * layer.weights + extra) * STORED_BYTES),
        f"drafter's KV of {capacity} rows": float(layers * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * model.intermediate * STORED_BYTES),
    }


def require_fit(emulation: Emulation, capacity: int) -> None:
    """Raises CapacityError, with the sums, for the first device that `capacity` rows overfill."""
    _require("the draft node", emulation.draft_node, draft_node_parts(emulation, capacity))
    for stage, device in enumerate(emulation.stages):
        _require(f"stage {stage + 1}", device, stage_parts(emulation, stage, capacity))


def _require(place: str, device: DeviceProfile, parts: dict[str, float]) -> None:
    needed = sum(parts.values())
    if needed > device.memory_bytes:
        sums = " + ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items())
        raise CapacityError(
            f"{place} does not fit on {device.title}: {sums} = {needed / 2**30:.2f} GiB, and "
            f"{device.memory_bytes / 2**30:.2f} GiB are usable; use more stages or a quantisation"
        )
