"""The places of a GGUF model's tensors, by the names that transformers' modules have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import layer_prefix
from flowedge.models.families.family import MTP_PREFIX, NAMES_AHEAD
from flowedge.models.files.config_numbers import MAX_EXPERTS, MAX_LAYERS
from flowedge.models.files.stored_tensors import StoredTensor
from flowedge.models.gguf_families.architectures import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    GGUFArchitecture,
)

# They are part of the config, not of the weights.
_FACTORS = frozenset({ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS})
# Rotary frequencies that the first converters copied for each layer; they follow from the config.
_COPIED_FREQUENCIES = re.compile(r"blk\.\d{1,5}\.attn_rot_embd(\.weight)?")
_INDEX = re.compile(r"blk\.(\d{1,5})\.")
_LAYER = re.compile(
    r"blk\.(\d{1,5})\.([a-z_]+(?:1d|[12])?|shortconv\.[a-z_]+)(?:\.(\d{1,5}))?\.(weight|bias|scale)"
)
_STACKED = {
    "ffn_gate_exps": ("gate_proj",),
    "ffn_up_exps": ("up_proj",),
    "ffn_down_exps": ("down_proj",),
    "ffn_gate_up_exps": ("gate_proj", "up_proj"),
}
_SINGLE_EXPERT = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
# Weights that are stored without an axis of length 1.
_WITHOUT_AXIS = {"ssm_conv1d": 1, "shortconv.conv": 1, "ffn_gate_inp_shexp": 0}
# Parameters of a recurrence for each head, which have names of their own.
_OF_HEADS = re.compile(r"blk\.(\d{1,5})\.(ssm_a|ssm_d|ssm_dt\.bias)")
_HEAD_NAMES = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
# What a layer that predicts further tokens has beside the tensors of a decoder layer.
_AHEAD = re.compile(r"blk\.\d{1,5}\.nextn\.([a-z_]+)\.weight")
_OF_AHEAD = {name.replace(".", "_"): own for name, own in NAMES_AHEAD.items()}


def module_tensors(
    architecture: GGUFArchitecture,
    shapes: Mapping[str, tuple[int, ...]],
    heads: int,
    kv_heads: int,
    layers: int = MAX_LAYERS,
) -> dict[str, StoredTensor]:
    """The places of a model's tensors, by the names that transformers' modules have for them.

    Args:
        shapes: the shape of each stored tensor, by its name in the file.
        heads, kv_heads: the numbers of query heads and of key heads; layers: of layers.

    Raises:
        CheckpointError: when the architecture has no tensor of a stored name, or its shape is impossible.
    """
    found: dict[str, StoredTensor] = {}
    for stored, shape in shapes.items():
        if stored in _FACTORS or _COPIED_FREQUENCIES.fullmatch(stored):
            continue
        index = _INDEX.match(stored)
        behind = int(index[1]) - layers if architecture.drafts and index is not None else -1
        if behind > 0:
            continue
        placed = _places_ahead if behind == 0 else _places
        for name, place in placed(architecture, stored, shape, heads, kv_heads).items():
            if name in found:
                raise CheckpointError(f"the tensors {found[name].name} and {stored} are both {name}")
            found[name] = place
    return found


def _places_ahead(
    architecture: GGUFArchitecture, stored: str, shape: tuple[int, ...], heads: int, kv_heads: int
) -> dict[str, StoredTensor]:
    """The places of the tensors of the layer that predicts further tokens."""
    if match := _AHEAD.fullmatch(stored):
        added = architecture.norm_offset if match[1].endswith("norm") else 0.0
        return {f"{MTP_PREFIX}{_OF_AHEAD.get(match[1], match[1])}.weight": StoredTensor(stored, added=added)}
    index = _INDEX.match(stored)
    assert index is not None, "as chosen"
    own, prefix = layer_prefix(int(index[1])), f"{MTP_PREFIX}layers.0."
    try:
        places = _places(architecture, stored, shape, heads, kv_heads)
    except CheckpointError:  # a drafter that cannot be read is no reason to refuse the model
        return {f"{MTP_PREFIX}{stored}": StoredTensor(stored)}
    return {name.replace(own, prefix, 1): place for name, place in places.items()}


def _places(
    architecture: GGUFArchitecture, stored: str, shape: tuple[int, ...], heads: int, kv_heads: int
) -> dict[str, StoredTensor]:
    is_norm = stored.endswith("_norm.weight") and not stored.endswith(".ssm_norm.weight")
    added = architecture.norm_offset if is_norm else 0.0
    if stored in architecture.model:
        return {architecture.model[stored]: StoredTensor(stored, added=added)}
    if (of_heads := _of_heads(architecture, stored)) is not None:
        return of_heads
    match = _LAYER.fullmatch(stored)
    if match is None:
        raise _unknown(architecture, stored)
    index, part, expert, suffix = match.groups()
    layer = layer_prefix(int(index))
    has_experts = "ffn_gate_inp" in architecture.modules
    if expert is None and (parameter := architecture.parameters.get(f"{part}.{suffix}")):
        return {f"{layer}{parameter}": StoredTensor(stored)}
    if part in _STACKED and has_experts and expert is None:
        return _experts(f"{layer}{architecture.experts}.", stored, shape, _STACKED[part], suffix)
    if part in _SINGLE_EXPERT and has_experts and expert is not None and suffix == "weight":
        name = f"{layer}{architecture.experts}.{int(expert)}.{_SINGLE_EXPERT[part]}.weight"
        return {name: StoredTensor(stored)}
    if part not in architecture.modules or expert is not None or suffix == "scale":
        raise _unknown(architecture, stored)
    paired = {"attn_q": heads, "attn_k": kv_heads}.get(part, 0) if architecture.paired else 0
    if paired and shape[0] % (2 * paired):
        raise CheckpointError(f"the {shape[0]} rows of tensor {stored} are not pairs in {paired} heads")
    axis = _WITHOUT_AXIS.get(part) if suffix == "weight" else None
    place = StoredTensor(stored, None, (0, 0), paired, added, axis=axis, flat=part == "ssm_norm")
    return {f"{layer}{architecture.modules[part]}.{suffix}": place}


def _of_heads(architecture: GGUFArchitecture, stored: str) -> dict[str, StoredTensor] | None:
    """The place of a tensor that has numbers of the heads of a recurrent layer; None for another tensor."""
    match = _OF_HEADS.fullmatch(stored) if "ssm_out" in architecture.modules else None
    if match is None or ("ssm_in" not in architecture.modules and match[2] == "ssm_d"):
        return None
    place = StoredTensor(stored, log_negated=match[2] == "ssm_a", flat=True)
    return {f"{layer_prefix(int(match[1]))}linear_attn.{_HEAD_NAMES[match[2]]}": place}


def _experts(
    prefix: str, stored: str, shape: tuple[int, ...], projections: tuple[str, ...], kind: str
) -> dict[str, StoredTensor]:
    axes, noun = (3, "weights") if kind == "weight" else (2, "biases")
    if len(shape) != axes or shape[0] > MAX_EXPERTS or shape[1] % len(projections):
        raise CheckpointError(f"tensor {stored} of shape {list(shape)} is not a stack of experts' {noun}")
    rows = shape[1] // len(projections)
    return {
        f"{prefix}{expert}.{projection}.{kind}": StoredTensor(
            stored, expert, (rows * part, rows * (part + 1))
        )
        for expert in range(shape[0])
        for part, projection in enumerate(projections)
    }


def _unknown(architecture: GGUFArchitecture, stored: str) -> CheckpointError:
    return CheckpointError(
        f"tensor {stored} is no part of the architecture {architecture.name} as FlowEdge knows it, so the "
        "model would be another one without it"
    )
