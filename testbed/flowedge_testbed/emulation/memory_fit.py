"""Whether an emulated pipeline fits the memory of its devices."""

from __future__ import annotations

from flowedge.core.verification import LAST_STAGE
from flowedge.device.memory import gib, require_memory
from flowedge.drafting.heads.recall import ROW_VECTORS
from flowedge.drafting.ngram import NGramDrafter
from flowedge.profiling.documents.device import DeviceProfile
from flowedge.profiling.documents.model import READ_AS_STORED, LayerSize, weight_bytes
from flowedge_testbed.emulation.drafter_weights import DrafterWeights
from flowedge_testbed.emulation.drafting_sizes import NGramSize, RecallSize
from flowedge_testbed.emulation.emulation import Emulation

ACTIVATION_ROWS = 512  # rows whose widest activations are held at once


def stage_parts(emulation: Emulation, stage: int, capacity: int) -> dict[str, float]:
    """Return the bytes that a stage holds, by part; `capacity` is the rows of a session's KV cache."""
    model, layer, count = emulation.model, LayerSize.of(emulation.model), emulation.split[stage]
    stored = model.stored_bytes
    parts = {
        f"{count} layers in {emulation.format_name}": count
        * layer.weights
        * weight_bytes(emulation.quant, stored),
        f"KV of {capacity} rows": float(count * layer.kv_bytes_per_row * capacity),
        "activations": _activations(emulation, emulation.row_width(stage)),
    }
    if emulation.quant not in READ_AS_STORED:
        parts[f"one matrix in {8 * stored} bits"] = float(model.hidden * model.intermediate * stored)
    if stage == 0:
        parts["embedding"] = float(model.vocab * model.hidden * stored)
    if stage == emulation.num_stages - 1 and emulation.verification == LAST_STAGE:
        parts["LM head"] = float(model.vocab * model.hidden * stored)
    return parts


def draft_node_parts(emulation: Emulation, capacity: int) -> dict[str, float]:
    """Return the bytes that the draft node holds, by part. What joined drafters share is counted once."""
    model, stored = emulation.model, emulation.model.stored_bytes
    parts = {"LM head": float(model.vocab * model.hidden * stored)}
    for number, size in enumerate(emulation.drafters, start=1):
        if isinstance(size, NGramSize):
            parts[f"n-grams of {capacity} tokens"] = float(NGramDrafter().session_bytes(capacity))
            continue
        if isinstance(size, RecallSize):
            parts[f"errors of {capacity} tokens"] = float(ROW_VECTORS * model.hidden * stored * capacity)
            continue
        drafter = DrafterWeights.of(model, size, emulation.draft_tokens, emulation.draft_quant)
        which = f" ({number})" if len(emulation.drafters) > 1 else ""
        kv = drafter.layers * drafter.layer.kv_bytes_per_row * capacity
        parts[f"drafter{which}"] = drafter.held_bytes(stored)
        parts[f"drafter's KV of {capacity} rows{which}"] = float(kv)
    parts["activations"] = _activations(emulation, emulation.row_width(emulation.num_stages - 1))
    return parts


def _activations(emulation: Emulation, row_width: int) -> float:
    """Return the bytes of the rows held at once, at the width of the widest activation or sent row."""
    model = emulation.model
    return float(ACTIVATION_ROWS * max(model.intermediate, row_width) * model.stored_bytes)


def require_fit(emulation: Emulation, capacity: int) -> None:
    """Check that each device holds its part of the pipeline, with a KV cache of `capacity` rows.

    Raises:
        CapacityError: for the first device that is too small, with the sums.
    """
    _require("the draft node", emulation.draft_node, draft_node_parts(emulation, capacity))
    for stage, device in enumerate(emulation.stages):
        _require(f"stage {stage + 1}", device, stage_parts(emulation, stage, capacity))
    for number, middle in enumerate(emulation.middles, start=1):
        parts = middle.memory_parts(emulation.model.stored_bytes, capacity, ACTIVATION_ROWS)
        _require(f"middle model {number}", middle.device, parts)


def _require(place: str, device: DeviceProfile, parts: dict[str, float]) -> None:
    memory_bytes = device.memory_gib * 2**30
    usable = f"{gib(memory_bytes)} are usable"
    claim = f"{place} does not fit on {device.title}"
    require_memory(claim, parts, memory_bytes, usable, "use more stages or a quantisation")
