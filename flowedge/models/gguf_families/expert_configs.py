"""Configs of families with attention in all layers, and experts in most."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.llama_configs import qwen3
from flowedge.models.gguf_families.model_facts import ModelFacts

_SIGMOID = 2  # a function of routers


def _qwen3_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    layers = metadata.layers
    return qwen3(facts) | {
        "model_type": "qwen3_moe",
        **facts.expert_sizes,
        "mlp_only_layers": [
            index for index in range(layers) if f"blk.{index}.ffn_gate_inp.weight" not in facts.shapes
        ],
        # A file does not store it: true in all published models.
        "norm_topk_prob": True,
    }


def _gpt_oss(facts: ModelFacts) -> dict[str, Any]:
    """gpt-oss, whose file has neither the bounds of its experts nor where YaRN's ramp ends: as published."""
    metadata = facts.metadata
    rope = facts.rope
    return {
        "model_type": "gpt_oss",
        "head_dim": facts.head_size,
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
        "sliding_window": metadata.count(".attention.sliding_window"),
        "intermediate_size": metadata.count(".expert_feed_forward_length"),
        "num_local_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "attention_bias": facts.has_bias("attn_q"),
        **facts.layer_types,
    }


def _deepseek2(facts: ModelFacts) -> dict[str, Any]:
    """GLM-4.7-Flash, and other models with latent attention that are computed alike."""
    metadata = facts.metadata
    rope, layers = facts.rope, metadata.layers
    if rope["rope_type"] != "default":
        raise CheckpointError(f"RoPE scaling {rope['rope_type']!r} is not supported in files of deepseek2")
    gate = metadata.values.get("deepseek2.expert_gating_func")
    if gate != _SIGMOID:  # a router by softmax where it is missing
        raise CheckpointError(f"deepseek2.expert_gating_func is {gate}, not {_SIGMOID}: routers by sigmoids")
    rotated = metadata.count(".rope.dimension_count")
    dense = metadata.count(".leading_dense_block_count", 0, least=0, most=layers)
    return {
        "model_type": "glm4_moe_lite",
        "num_key_value_heads": metadata.count(".attention.head_count"),
        "rope_parameters": rope,
        "rope_interleave": True,
        "attention_bias": facts.has_bias("attn_kv_a_mqa"),
        "q_lora_rank": metadata.count(".attention.q_lora_rank", 0, least=0) or None,
        "kv_lora_rank": metadata.count(".attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": metadata.count(".attention.key_length_mla", least=rotated + 1) - rotated,
        "v_head_dim": metadata.count(".attention.value_length_mla"),
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "n_routed_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "n_shared_experts": metadata.count(".expert_shared_count", 0, least=0),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "norm_topk_prob": bool(metadata.values.get("deepseek2.expert_weights_norm", False)),
        "routed_scaling_factor": metadata.number(".expert_weights_scale", 1.0),
        "num_nextn_predict_layers": metadata.count(".nextn_predict_layers", 0, least=0),
    }


WITH_EXPERTS = {
    "qwen3moe": _qwen3_moe,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
}
