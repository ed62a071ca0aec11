"""Configs of families with recurrent layers: state spaces, gated delta nets and short convolutions."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.families.parts import TILED
from flowedge.models.gguf_families.llama_configs import granite
from flowedge.models.gguf_families.model_facts import ModelFacts


def _granite_hybrid(facts: ModelFacts) -> dict[str, Any]:
    """Granite 4 with state spaces; a file of the model without them is one of Granite 3."""
    metadata = facts.metadata
    heads, values = metadata.count(".ssm.time_step_rank"), metadata.count(".ssm.inner_size")
    if values % heads or values % metadata.count(".embedding_length"):
        raise CheckpointError(
            f"{values} values of a state space are no multiple of {heads} heads, or of the width of rows"
        )
    rotates = metadata.values.get("granitehybrid.rope.scaling.finetuned", True)
    return granite(facts) | {
        "model_type": "granitemoehybrid",
        "attention_bias": any(name.endswith(".attn_q.bias") for name in facts.shapes),
        "position_embedding_type": "rope" if rotates else "nope",
        "layer_types": _layer_kinds(facts, "linear_attention"),
        "num_local_experts": metadata.count(".expert_count", 0, least=0),
        "num_experts_per_tok": metadata.count(".expert_used_count", 0, least=0),
        "shared_intermediate_size": metadata.count(
            ".expert_shared_feed_forward_length", metadata.count(".feed_forward_length")
        ),
        "mamba_n_heads": heads,
        "mamba_d_head": values // heads,
        "mamba_expand": values // metadata.count(".embedding_length"),
        "mamba_n_groups": metadata.count(".ssm.group_count"),
        "mamba_d_state": metadata.count(".ssm.state_size"),
        "mamba_d_conv": metadata.count(".ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in facts.shapes),
    }


def _nemotron(facts: ModelFacts) -> dict[str, Any]:
    """Nemotron-H, each of whose layers is known by its tensors."""
    metadata = facts.metadata
    heads, values = metadata.count(".ssm.time_step_rank"), metadata.count(".ssm.inner_size")
    if values % heads:
        raise CheckpointError(f"{values} values of a state space are no multiple of {heads} heads")
    tensors = {"attn_q": "full_attention", "ssm_in": "linear_attention", "ffn_gate_inp": "moe"}
    kinds = [
        next((kind for name, kind in tensors.items() if f"blk.{index}.{name}.weight" in facts.shapes), "mlp")
        for index in range(metadata.layers)
    ]
    config = {
        "model_type": "nemotron_h",
        "head_dim": facts.head_size,
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": values // heads,
        "n_groups": metadata.count(".ssm.group_count"),
        "ssm_state_size": metadata.count(".ssm.state_size"),
        "conv_kernel": metadata.count(".ssm.conv_kernel"),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in facts.shapes),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in facts.shapes),
    }
    if "moe" not in kinds:
        return config
    return config | {
        "n_routed_experts": metadata.count(".expert_count"),
        "num_experts_per_tok": metadata.count(".expert_used_count"),
        "moe_intermediate_size": metadata.count(".expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": metadata.count(".expert_shared_feed_forward_length"),
        "norm_topk_prob": bool(metadata.values.get(f"{metadata.architecture}.expert_weights_norm", True)),
        "routed_scaling_factor": metadata.number(".expert_weights_scale", 1.0),
    }


def _qwen35(facts: ModelFacts) -> dict[str, Any]:
    """Qwen 3.5, whose heads of values lie as llama.cpp repeats keys: all first ones, then all second ones."""
    metadata, size = facts.metadata, facts.head_size
    heads = metadata.count(".ssm.time_step_rank")
    values = metadata.count(".ssm.inner_size")
    if values % heads:
        raise CheckpointError(f"{values} values of a gated delta net are not divided into {heads} heads")
    rotated = metadata.count(".rope.dimension_count", size // 4)
    return {
        "model_type": "qwen3_5_text",
        "head_dim": size,
        "rope_parameters": facts.rope | {"partial_rotary_factor": rotated / size},
        "attention_bias": facts.has_bias("attn_k"),
        "layer_types": _layer_kinds(facts, "linear_attention"),
        "linear_num_key_heads": metadata.count(".ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": metadata.count(".ssm.state_size"),
        "linear_value_head_dim": values // heads,
        "linear_conv_kernel_dim": metadata.count(".ssm.conv_kernel"),
        "mtp_num_hidden_layers": metadata.count(".nextn_predict_layers", 0, least=0),
        TILED: True,
    }


def _qwen35_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return _qwen35(facts) | {
        "model_type": "qwen3_5_moe_text",
        **facts.expert_sizes,
        "shared_expert_intermediate_size": metadata.count(".expert_shared_feed_forward_length"),
    }


def _lfm2(facts: ModelFacts) -> dict[str, Any]:
    """LFM2, whose file has the width of its MLPs as it is."""
    return {
        "model_type": "lfm2",
        "rope_parameters": facts.rope,
        "layer_types": _layer_kinds(facts, "conv"),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": facts.metadata.count(".shortconv.l_cache"),
    }


def _lfm2_moe(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return _lfm2(facts) | {
        "model_type": "lfm2_moe",
        **facts.expert_sizes,
        "num_dense_layers": metadata.count(".leading_dense_block_count", 0, least=0),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in facts.shapes),
        # A file does not store it: true in all published models.
        "norm_topk_prob": True,
    }


def _layer_kinds(facts: ModelFacts, recurrent: str) -> list[str]:
    """The kind of each layer, which is `recurrent` for those without queries."""
    return [
        "full_attention" if f"blk.{index}.attn_q.weight" in facts.shapes else recurrent
        for index in range(facts.metadata.layers)
    ]


RECURRENT = {
    "granitehybrid": _granite_hybrid,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": _nemotron,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35_moe,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
}
