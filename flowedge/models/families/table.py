"""The model families, by the `model_type` of config.json."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.families.family import Family
from flowedge.models.families.from_config import (
    delta_net,
    gemma4_experts,
    glm_experts,
    gpt_oss_experts,
    granite_experts,
    granite_mamba2,
    lfm2_experts,
    mixtral_experts,
    nemotron_experts,
    nemotron_mamba2,
    qwen3_5_experts,
    qwen3_experts,
    qwen3_next_experts,
    short_convolution,
)
from flowedge.models.families.parts import MLP_KINDS, Half, Latent


def _lfm2_intermediate(config: Any) -> int:
    width = int(config.intermediate_size)
    if not config.block_auto_adjust_ff_dim:
        return width
    width = int(2 * width / 3)
    if config.block_ffn_dim_multiplier is None:
        return width
    width, unit = int(config.block_ffn_dim_multiplier * width), int(config.block_multiple_of)
    return -(-width // unit) * unit


def _glm_latent(config: Any) -> Latent:
    return Latent(
        rank=int(config.kv_lora_rank),
        rotated=int(config.qk_rope_head_dim),
        plain=int(config.qk_nope_head_dim),
        value=int(config.v_head_dim),
        query_rank=None if config.q_lora_rank is None else int(config.q_lora_rank),
        paired=bool(config.rope_interleave),
    )


def _glm_scaling(config: Any) -> float:
    """The scale of scores; YaRN multiplies it where its parameters say so."""
    scaling, rope = float(_glm_latent(config).query ** -0.5), config.rope_parameters
    if rope["rope_type"] != "default" and (part := rope.get("mscale_all_dim", 0)) and rope["factor"] > 1:
        scaling *= (0.1 * part * math.log(rope["factor"]) + 1) ** 2
    return scaling


def _nemotron_halves(config: Any) -> tuple[Half, ...]:
    def half(kind: str) -> Half:
        return "mlp" if kind in MLP_KINDS else "mixing"

    return tuple(half(kind) for kind in config.layer_types)


def _key_layers(config: Any) -> tuple[int, ...]:
    """The layer whose keys each layer reads: its own, or the last of its type that has some."""
    layers, kinds = int(config.num_hidden_layers), config.layer_types
    own = layers - int(config.num_kv_shared_layers)
    last = {kind: layer for layer, kind in enumerate(kinds[:own])}
    return tuple(layer if layer < own else last[kinds[layer]] for layer in range(layers))


def _query_scale(config: Any) -> float:
    return float(config.query_pre_attn_scalar**-0.5)


_GEMMA2 = Family(
    "gemma2",
    "Gemma2",
    windows="by layer type",
    biases=frozenset({"attention"}),
    norm_plus_one=True,
    norms_after=True,
    activation_field="hidden_activation",
    scaling=_query_scale,
    attention_softcap=True,
    embedding="root of width",
    logits_softcap=lambda config: config.final_logit_softcapping,
)
_GEMMA3 = replace(
    _GEMMA2,
    module="gemma3",
    prefix="Gemma3",
    text_prefix="Gemma3Text",
    query_key_norms=True,
    attention_softcap=False,
)
_GEMMA4 = Family(
    "gemma4",
    "Gemma4",
    text_prefix="Gemma4Text",
    windows="by layer type",
    biases=frozenset({"attention"}),
    norm_in_float=True,
    norms_after=True,
    query_key_norms=True,
    value_norm=True,
    layer_factor=True,
    activation_field="hidden_activation",
    scaling=lambda _config: 1.0,
    experts=gemma4_experts,
    key_layers=_key_layers,
    embedding="root of width",
    logits_softcap=lambda config: config.final_logit_softcapping,
)
_GEMMA4_UNIFIED = replace(
    _GEMMA4, module="gemma4_unified", prefix="Gemma4Unified", text_prefix="Gemma4UnifiedText"
)
_LLAMA = Family("llama", "Llama", own_config=True, biases=frozenset({"attention", "mlp"}))
_GRANITE = Family(
    "granite",
    "Granite",
    biases=_LLAMA.biases,
    scaling=lambda config: float(config.attention_multiplier),
    embedding="config",
    residual_multiplier=lambda config: float(config.residual_multiplier),
    logits_divisor=lambda config: float(config.logits_scaling),
)
_QWEN3 = Family(
    "qwen3",
    "Qwen3",
    own_config=True,
    windows="by layer type",
    biases=frozenset({"attention"}),
    query_key_norms=True,
)
_MINISTRAL3 = Family("ministral3", "Ministral3", windows="every layer")
# Names of the decoder's tensors in multimodal checkpoints.
_OF_LANGUAGE_MODEL = (
    (r"^language_model\.model\.", "model."),
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)
_QWEN3_5 = Family(
    "qwen3_5",
    "Qwen3_5",
    text_prefix="Qwen3_5Text",
    biases=frozenset({"attention"}),
    norm_plus_one=True,
    query_key_norms=True,
    partial_rotary=True,
    recurrence=delta_net,
    output_gate=True,
    predicts_ahead="behind MTP_PREFIX",
)
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    module="qwen3_5_moe",
    prefix="Qwen3_5Moe",
    text_prefix="Qwen3_5MoeText",
    intermediate=lambda config: int(getattr(config, "intermediate_size", 0) or config.moe_intermediate_size),
    experts=qwen3_5_experts,
)
_LFM2 = Family(
    "lfm2",
    "Lfm2",
    renames=(
        (r"^model\.embedding_norm\.", "model.norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.feed_forward\.expert_bias$", ".mlp.gate.choice_bias"),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"(\.layers\.\d+)\.conv\.", r"\1.linear_attn."),
    ),
    query_key_norms=True,
    epsilon_field="norm_eps",
    intermediate=_lfm2_intermediate,
    recurrence=short_convolution,
)
# By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA3, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma3_text": _GEMMA3,
    "glm4_moe_lite": Family(
        "glm4_moe_lite",
        "Glm4MoeLite",
        renames=(
            (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.choice_bias"),
            (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
        ),
        biases=frozenset({"attention"}),
        scaling=_glm_scaling,
        experts=glm_experts,
        latent=_glm_latent,
        predicts_ahead="behind layers",
    ),
    "gpt_oss": Family(
        "gpt_oss",
        "GptOss",
        renames=((r"\.mlp\.router\.", ".mlp.gate."),),
        windows="by layer type",
        biases=frozenset({"attention"}),
        sinks=True,
        experts=gpt_oss_experts,
        experts_in_turns=True,
    ),
    "gemma4": replace(_GEMMA4, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma4_text": _GEMMA4,
    "gemma4_unified": replace(_GEMMA4_UNIFIED, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "gemma4_unified_text": _GEMMA4_UNIFIED,
    "granite": _GRANITE,
    "granitemoehybrid": replace(
        _GRANITE,
        module="granitemoehybrid",
        prefix="GraniteMoeHybrid",
        renames=(
            (r"\.block_sparse_moe\.router(\.layer)?\.", ".mlp.gate."),
            (r"\.block_sparse_moe\.input_linear\.weight", ".mlp.experts.gate_up_proj"),
            (r"\.block_sparse_moe\.output_linear\.weight", ".mlp.experts.down_proj"),
            (r"\.block_sparse_moe\.", ".mlp."),
            (r"\.shared_mlp\.", ".mlp.shared_expert."),
            (r"\.input_linear\.", ".gate_up_proj."),
            (r"\.output_linear\.", ".down_proj."),
            (r"(\.layers\.\d+)\.mamba\.", r"\1.linear_attn."),
        ),
        renames_without_experts=((r"\.mlp\.shared_expert\.", ".mlp."),),
        biases=frozenset({"attention"}),
        rotated=lambda config: [config.position_embedding_type == "rope"] * config.num_hidden_layers,
        intermediate=lambda config: int(config.shared_intermediate_size),
        experts=granite_experts,
        recurrence=granite_mamba2,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(
        _LFM2,
        module="lfm2_moe",
        prefix="Lfm2Moe",
        intermediate=lambda config: int(config.intermediate_size),
        experts=lfm2_experts,
    ),
    "llama": _LLAMA,
    "ministral3": _MINISTRAL3,
    "mistral": Family("mistral", "Mistral", own_config=True, windows="every layer"),
    "mistral3": replace(_MINISTRAL3, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "mixtral": Family(
        "mixtral",
        "Mixtral",
        windows="every layer",
        experts=mixtral_experts,
        renames=(
            (r"\.block_sparse_moe\.", ".mlp."),
            (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
            (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
            (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
        ),
    ),
    "nemotron_h": Family(
        "nemotron_h",
        "NemotronH",
        renames=(
            (r"^backbone\.", "model."),
            (r"^model\.embeddings\.", "model.embed_tokens."),
            (r"^model\.norm_f\.", "model.norm."),
            (r"(\.layers\.\d+)\.norm\.", r"\1.input_layernorm."),
            (r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."),
            (r"\.mixer\.(in_proj|out_proj|conv1d|norm|dt_bias|A_log|D)\b", r".linear_attn.\1"),
            (r"\.mixer\.gate\.e_score_correction_bias$", ".mlp.gate.choice_bias"),
            (r"\.mixer\.shared_experts\.", ".mlp.shared_expert."),
            (r"\.mixer\.", ".mlp."),
        ),
        biases=frozenset({"mlp"}),
        activation_field="mlp_hidden_act",
        epsilon_field="layer_norm_epsilon",
        rotated=lambda config: (False,) * len(config.layer_types),
        halves=_nemotron_halves,
        gated=False,
        experts=nemotron_experts,
        recurrence=nemotron_mamba2,
    ),
    "phi3": Family("phi3", "Phi3", windows="every layer", fused=True, partial_rotary=True),
    "qwen2": Family(
        "qwen2", "Qwen2", own_config=True, windows="by layer type", biases=frozenset({"always qkv"})
    ),
    "qwen3": _QWEN3,
    "qwen3_5": replace(_QWEN3_5, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "qwen3_5_moe": replace(_QWEN3_5_MOE, multimodal=True, renames=_OF_LANGUAGE_MODEL),
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_moe": replace(
        _QWEN3,
        module="qwen3_moe",
        prefix="Qwen3Moe",
        own_config=False,
        windows="every layer",
        experts=qwen3_experts,
    ),
    "qwen3_next": replace(
        _QWEN3_5_MOE,
        module="qwen3_next",
        prefix="Qwen3Next",
        text_prefix="",
        experts=qwen3_next_experts,
        delta_by_key_head=True,
    ),
    "smollm3": Family(
        "smollm3",
        "SmolLM3",
        windows="by layer type",
        biases=_LLAMA.biases,
        rotated=lambda config: config.no_rope_layers,
    ),
}


def family_of(model_type: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model type {model_type!r} is not supported; supported types: {supported}")
    return family
