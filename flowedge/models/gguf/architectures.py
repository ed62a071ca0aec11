"""The architectures of GGUF that FlowEdge reads, and how each names and stores its tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import (
    EMBEDDING,
    FINAL_NORM,
    LAYER_EMBEDDING,
    LAYER_INPUT_NORM,
    LAYER_PROJECTION,
    LM_HEAD,
    layer_prefix,
)
from flowedge.models.families.family import MTP_PREFIX, NAMES_AHEAD
from flowedge.models.files.config_numbers import MAX_EXPERTS, MAX_LAYERS
from flowedge.models.files.stored_tensors import StoredTensor

TOKEN_EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

_MODEL = {
    TOKEN_EMBEDDING: EMBEDDING,
    "output_norm.weight": FINAL_NORM,
    "token_embd_norm.weight": FINAL_NORM,  # of LFM2
    OUTPUT: LM_HEAD,
}
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

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_DENSE = _ATTENTION | _MLP | {"ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_ROUTER = {"ffn_gate_inp": "mlp.gate"}
_DELTA_NET = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_out": "linear_attn.out_proj",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
}
_MAMBA2 = {
    "ssm_in": "linear_attn.in_proj",
    "ssm_out": "linear_attn.out_proj",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
}
_SHORT_CONVOLUTION = {
    "shortconv.conv": "linear_attn.conv",
    "shortconv.in_proj": "linear_attn.in_proj",
    "shortconv.out_proj": "linear_attn.out_proj",
}
_SHARED_VALUES = {
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED_EXPERT = {"ffn_gate_shexp": "mlp.shared_expert.gate_proj"} | _SHARED_VALUES
_NEMOTRON = _ATTENTION | _MAMBA2 | {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LATENT = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_k_b": "self_attn.k_b",
    "attn_v_b": "self_attn.v_b",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_SHARED_GATE = {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}
# Weights that are stored without an axis of length 1.
_WITHOUT_AXIS = {"ssm_conv1d": 1, "shortconv.conv": 1, "ffn_gate_inp_shexp": 0}
# Parameters of a recurrence for each head, which have names of their own.
_OF_HEADS = re.compile(r"blk\.(\d{1,5})\.(ssm_a|ssm_d|ssm_dt\.bias)")
_HEAD_NAMES = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
# What a layer that predicts further tokens has beside the tensors of a decoder layer.
_AHEAD = re.compile(r"blk\.\d{1,5}\.nextn\.([a-z_]+)\.weight")
_OF_AHEAD = {name.replace(".", "_"): own for name, own in NAMES_AHEAD.items()}
_FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


_GEMMA4 = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
_GEMMA4_MODEL = {
    "per_layer_token_embd.weight": LAYER_EMBEDDING,
    "per_layer_model_proj.weight": LAYER_PROJECTION,
    "per_layer_proj_norm.weight": LAYER_INPUT_NORM,
}
# Of the router, too; the weights of experts are scaled where llama.cpp scales what experts give.
_GEMMA4_PARAMETERS = {
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}


@dataclass(frozen=True)
class GGUFArchitecture:
    """How files of one `general.architecture` store a model.

    Attributes:
        modules: the path of a module in its decoder layer, by its name in the file.
        paired: whether the rows of q and k are stored as llama.cpp's interleaved rotation needs them.
        parameters: the path of a parameter in its decoder layer, by the whole name in the file.
        norm_offset: the value that the file adds to the weights of norms, but those of gated delta nets.
        drafts: whether layers behind those of the model may predict further tokens; the first is read.
        model: the tensors that belong to no layer, by their names in the file.
        experts: the path of the experts in a decoder layer.
    """

    name: str
    modules: Mapping[str, str] = field(default_factory=lambda: _DENSE)
    parameters: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    norm_offset: float = 0.0
    drafts: bool = False
    model: Mapping[str, str] = field(default_factory=lambda: _MODEL)
    experts: str = "mlp.experts"


ARCHITECTURES = {
    entry.name: entry
    for entry in (
        GGUFArchitecture("llama", _DENSE | _ROUTER, paired=True),
        GGUFArchitecture("mistral3", paired=True),
        GGUFArchitecture("granite", paired=True),
        GGUFArchitecture("granitehybrid", _DENSE | _ROUTER | _SHARED_EXPERT | _MAMBA2, paired=True),
        GGUFArchitecture("nemotron_h", _NEMOTRON, drafts=True),
        GGUFArchitecture(
            "nemotron_h_moe",
            _NEMOTRON | _ROUTER | _SHARED_VALUES,
            drafts=True,
            parameters={"exp_probs_b.bias": "mlp.gate.choice_bias"},
        ),
        GGUFArchitecture("smollm3", paired=True),
        GGUFArchitecture("qwen2"),
        GGUFArchitecture("qwen3", _DENSE | _HEAD_NORMS),
        GGUFArchitecture("qwen3moe", _DENSE | _HEAD_NORMS | _ROUTER),
        GGUFArchitecture(
            "qwen35", _ATTENTION | _HEAD_NORMS | _MLP | _DELTA_NET, norm_offset=1.0, drafts=True
        ),
        GGUFArchitecture(
            "qwen35moe",
            _ATTENTION | _HEAD_NORMS | _ROUTER | _SHARED_EXPERT | _SHARED_GATE | _DELTA_NET,
            norm_offset=1.0,
            drafts=True,
        ),
        GGUFArchitecture("lfm2", _DENSE | _HEAD_NORMS | _SHORT_CONVOLUTION),
        GGUFArchitecture(
            "lfm2moe",
            _DENSE | _HEAD_NORMS | _SHORT_CONVOLUTION | _ROUTER,
            {"exp_probs_b.bias": "mlp.gate.choice_bias"},
        ),
        GGUFArchitecture(
            "deepseek2",
            _LATENT | _MLP | _ROUTER | _SHARED_EXPERT,
            {"exp_probs_b.bias": "mlp.gate.choice_bias"},
            drafts=True,
        ),
        GGUFArchitecture(
            "gpt-oss",
            _ATTENTION | _ROUTER | {"post_attention_norm": "post_attention_layernorm"},
            {"attn_sinks.weight": "self_attn.sinks"},
        ),
        GGUFArchitecture("gemma2", _ATTENTION | _MLP | _FOUR_NORMS, norm_offset=1.0),
        GGUFArchitecture("gemma3", _ATTENTION | _MLP | _FOUR_NORMS | _HEAD_NORMS, norm_offset=1.0),
        GGUFArchitecture(
            "gemma4",
            _ATTENTION | _MLP | _FOUR_NORMS | _HEAD_NORMS | _GEMMA4,
            model=_MODEL | _GEMMA4_MODEL,
            experts="experts",
            parameters=_GEMMA4_PARAMETERS,
        ),
        GGUFArchitecture(
            "phi3",
            {
                "attn_norm": "input_layernorm",
                "attn_qkv": "self_attn.qkv_proj",
                "attn_output": "self_attn.o_proj",
                "ffn_norm": "post_attention_layernorm",
                "ffn_up": "mlp.gate_up_proj",
                "ffn_down": "mlp.down_proj",
            },
        ),
    )
}


def architecture_of(name: object) -> GGUFArchitecture:
    """The architecture of a name.

    Raises:
        CheckpointError: when it is not supported.
    """
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(
            f"GGUF architecture {name!r} is not supported; supported architectures: {supported}"
        )
    return found


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


def has_bias(names: Collection[str], part: str) -> bool:
    """Return whether the first layer's module `part` has a bias."""
    return f"blk.0.{part}.bias" in names
