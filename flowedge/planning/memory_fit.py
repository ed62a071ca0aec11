"""Whether a pipeline fits the memory of its devices."""

from __future__ import annotations

from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.device.memory import gib, require_memory
from flowedge.drafting.heads.recall import ROW_VECTORS
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.models.recurrent.row_states import session_bytes
from flowedge.planning.drafter_weights import DrafterWeights
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.model import READ_AS_STORED, LayerSize, NGramSize, RecallSize, weight_bytes
from flowedge.planning.profile.pipeline import MiddleProfile, PipelineProfile
from flowedge.planning.split import layer_ranges

ACTIVATION_ROWS = 512  # rows whose widest activations are held at once


def stage_parts(pipeline: PipelineProfile, stage: int, capacity: int, sessions: int = 1) -> dict[str, float]:
    """Return the bytes that a stage holds, by part.

    capacity: rows of the KV caches of all `sessions`.
    """
    model, count = pipeline.model, pipeline.split[stage]
    stored, kinds = model.stored_bytes, model.kinds(*layer_ranges(pipeline.split)[stage])
    weights = sum(layer.weights * number for layer, number in kinds)
    kv = sum(layer.kv_bytes_per_row * number for layer, number in kinds)
    states = sum(states_bytes(layer) * number for layer, number in kinds)
    parts = {
        f"{count} layers in {pipeline.format_name}": weights * weight_bytes(pipeline.quant, stored),
        f"KV of {capacity} rows": float(kv * capacity),
        "activations": _activations(pipeline, pipeline.row_width(stage)),
    }
    if states:
        parts["states"] = float(states * sessions)
    if pipeline.quant not in READ_AS_STORED:
        parts[f"one matrix in {8 * stored} bits"] = float(model.hidden * model.intermediate * stored)
    if stage == 0:
        parts["embedding"] = model.embedding_bytes(pipeline.quant)
    if stage == pipeline.num_stages - 1 and pipeline.verification == LAST_STAGE:
        parts["LM head"] = float(model.vocab * model.hidden * stored)
    return parts


def states_bytes(layer: LayerSize) -> int:
    """Return the bytes that a session takes in a layer with a state; 0 for a layer with attention."""
    return session_bytes(layer.states.net(layer.hidden)) if layer.recurs and layer.states is not None else 0


def draft_node_parts(pipeline: PipelineProfile, capacity: int, *, drafts: bool = True) -> dict[str, float]:
    """Return the bytes that the draft node holds, by part. What joined drafters share is counted once.

    drafts: whether there is a drafter; decoding without drafts needs none.
    """
    model, stored = pipeline.model, pipeline.model.stored_bytes
    parts = {"LM head": float(model.vocab * model.hidden * stored)}
    for number, size in enumerate(pipeline.drafters if drafts else (), start=1):
        if isinstance(size, NGramSize):
            parts[f"n-grams of {capacity} tokens"] = float(NGramDrafter().session_bytes(capacity))
            continue
        if isinstance(size, RecallSize):
            parts[f"errors of {capacity} tokens"] = float(ROW_VECTORS * model.hidden * stored * capacity)
            continue
        drafter = DrafterWeights.of(model, size, pipeline.draft_tokens, pipeline.draft_quant)
        which = f" ({number})" if len(pipeline.drafters) > 1 else ""
        kv = drafter.layers * drafter.layer.kv_bytes_per_row * capacity
        parts[f"drafter{which}"] = drafter.held_bytes(stored)
        parts[f"drafter's KV of {capacity} rows{which}"] = float(kv)
    parts["activations"] = _activations(pipeline, pipeline.row_width(pipeline.num_stages - 1))
    return parts


def middle_parts(middle: MiddleProfile, part: int, stored_bytes: int, capacity: int) -> dict[str, float]:
    """Return the bytes that a device of a middle model holds, by part.

    Args:
        part: the index of the device in the middle model's.
        stored_bytes: of a weight and of a KV element.
    """
    size, layer, layers = middle.size, LayerSize.of(middle.size, stored_bytes), middle.split[part]
    ends = (part == 0) + (part == len(middle.devices) - 1)  # the embedding, the LM head
    return {
        f"{layers} layers": float(layers * layer.weights * stored_bytes),
        "embedding and LM head": float(ends * size.vocab * size.hidden * stored_bytes),
        f"KV of {capacity} rows": float(layers * layer.kv_bytes_per_row * capacity),
        "activations": float(ACTIVATION_ROWS * size.intermediate * stored_bytes),
    }


def _activations(pipeline: PipelineProfile, row_width: int) -> float:
    """Return the bytes of the rows held at once, at the width of the widest activation or sent row."""
    model = pipeline.model
    return float(ACTIVATION_ROWS * max(model.intermediate, row_width) * model.stored_bytes)


def require_fit(pipeline: PipelineProfile, capacity: int, sessions: int = 1) -> None:
    """Check that each device holds its part of the pipeline, with KV caches of `capacity` rows together.

    Raises:
        CapacityError: for the first device that is too small, with the sums.
    """
    head = draft_node_parts(pipeline, capacity)
    if pipeline.beside is not None:
        layers = stage_parts(pipeline, pipeline.beside, capacity, sessions)
        head |= {f"{part} (stage {pipeline.beside + 1})": held for part, held in layers.items()}
    _require("the draft node", pipeline.draft_node, head)
    for stage, device in enumerate(pipeline.stages):
        _require(f"stage {stage + 1}", device, stage_parts(pipeline, stage, capacity, sessions))
    for number, middle in enumerate(pipeline.middles, start=1):
        for part, device in enumerate(middle.devices):
            parts = middle_parts(middle, part, pipeline.model.stored_bytes, capacity)
            _require(f"middle model {number}", device, parts)


def _require(place: str, device: DeviceProfile, parts: dict[str, float]) -> None:
    memory_bytes = device.memory_gib * 2**30
    usable = f"{gib(memory_bytes)} are usable"
    claim = f"{place} does not fit on {device.title}"
    require_memory(claim, parts, memory_bytes, usable, "use more stages or a quantisation")
