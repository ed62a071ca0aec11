"""The architectures of GGUF that FlowEdge reads, and how each names and stores its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowedge.core.errors import CheckpointError
from flowedge.models.architecture import (
    EMBEDDING,
    FINAL_NORM,
    LAYER_EMBEDDING,
    LAYER_INPUT_NORM,
    LAYER_PROJECTION,
    LM_HEAD,
)

ARCHITECTURE_KEY = "gguf_architecture"  # of a config.json: its tensors are named and stored as in a GGUF file
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
