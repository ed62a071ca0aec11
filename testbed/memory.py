"""Whether an emulated pipeline fits its devices; one that does not is refused with the sums."""

from __future__ import annotations

from dataclasses import replace

from flowedge.drafting.ngram import NGramDrafter
from flowedge.errors import CapacityError
from testbed.emulation import EmulatedMiddle, Emulation
from testbed.profiles.device import DeviceProfile
from testbed.profiles.model import EagleSize, LayerSize, NGramSize, weight_bytes

ACTIVATION_ROWS = 512  # rows whose widest activations are held at once


def stage_parts(emulation: Emulation, stage: int, capacity: int) -> dict[str, float]:
    """Bytes a stage holds, by part; `capacity` is the cache rows of one session."""
    model, layer, count = emulation.model, LayerSize.of(emulation.model), emulation.split[stage]
    stored = model.stored_bytes
    parts = {
        f"{count} layers in {emulation.format_name}": count
        * layer.weights
        * weight_bytes(emulation.quant, stored),
        f"KV of {capacity} rows": float(count * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * model.intermediate * stored),
    }
    if emulation.quant not in ("none", "int4"):
        parts[f"one matrix in {8 * stored} bits"] = float(model.hidden * model.intermediate * stored)
    if stage == 0:
        parts["embedding"] = float(model.vocab * model.hidden * stored)
    return parts


def draft_node_parts(emulation: Emulation, capacity: int) -> dict[str, float]:
    """Bytes the draft node holds, by part."""
    if emulation.drafting:
        return _joint_parts(emulation, capacity)
    model, drafter = emulation.model, emulation.drafter
    table, stored = model.vocab * model.hidden, model.stored_bytes
    if isinstance(drafter, EagleSize):
        layer, layers, extra = LayerSize.of(model), 1, 2 * model.hidden**2 + table
    else:
        layer, layers, extra = (
            LayerSize.of(drafter, stored),
            drafter.layers,
            2 * drafter.vocab * drafter.hidden,
        )
    return {
        "LM head": float(table * stored),
        "drafter": float((layers * layer.weights + extra) * stored),
        f"drafter's KV of {capacity} rows": float(layers * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * model.intermediate * stored),
    }


def _joint_parts(emulation: Emulation, capacity: int) -> dict[str, float]:
    """The same with several drafters; what they share is counted once."""
    parts = _without_drafter(draft_node_parts(replace(emulation, drafting=()), capacity))
    for number, size in enumerate(emulation.drafting, start=1):
        if isinstance(size, NGramSize):
            parts[f"n-grams of {capacity} tokens"] = float(NGramDrafter().session_bytes(capacity))
        else:
            alone = draft_node_parts(replace(emulation, drafter=size, drafting=()), capacity)
            own = alone.keys() - _without_drafter(alone).keys()
            parts |= {f"{name} ({number})": alone[name] for name in sorted(own)}
    return parts


def _without_drafter(parts: dict[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if not name.startswith("drafter")}


def middle_parts(emulation: Emulation, middle: EmulatedMiddle, capacity: int) -> dict[str, float]:
    """Bytes the device of a middle model holds, by part."""
    size, stored = middle.size, emulation.model.stored_bytes
    layer = LayerSize.of(size, stored)
    return {
        f"{size.layers} layers": float(size.layers * layer.weights * stored),
        "embedding and LM head": float(2 * size.vocab * size.hidden * stored),
        f"KV of {capacity} rows": float(size.layers * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * size.intermediate * stored),
    }


def require_fit(emulation: Emulation, capacity: int) -> None:
    """Raises CapacityError, with the sums, for the first device that `capacity` rows overfill."""
    _require("the draft node", emulation.draft_node, draft_node_parts(emulation, capacity))
    for stage, device in enumerate(emulation.stages):
        _require(f"stage {stage + 1}", device, stage_parts(emulation, stage, capacity))
    for number, middle in enumerate(emulation.middles, start=1):
        _require(f"middle model {number}", middle.device, middle_parts(emulation, middle, capacity))


def _require(place: str, device: DeviceProfile, parts: dict[str, float]) -> None:
    needed = sum(parts.values())
    if needed > device.memory_bytes:
        sums = " + ".join(f"{name} {size / 2**30:.2f}" for name, size in parts.items())
        raise CapacityError(
            f"{place} does not fit on {device.title}: {sums} = {needed / 2**30:.2f} GiB, and "
            f"{device.memory_bytes / 2**30:.2f} GiB are usable; use more stages or a quantisation"
        )
