"""Configs of Gemma 2, 3 and 4, most of whose layers have windows."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.architectures import ROPE_FACTORS
from flowedge.models.gguf_families.model_facts import ModelFacts
from flowedge.models.gguf_families.rope import rope_parameters

_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62
_GEMMA3_LOCAL_BASE = 10000.0
_STOPPING = 1e29  # a divisor of a frequency that leaves no rotation


def _gemma2(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    return {
        "model_type": "gemma2",
        "head_dim": facts.head_size,
        "rope_parameters": facts.rope,
        "sliding_window": metadata.count(".attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA2_27B_LAYERS),
        "attn_logit_softcapping": metadata.number(".attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number(".final_logit_softcapping", 30.0),
    }


def _gemma3(facts: ModelFacts) -> dict[str, Any]:
    metadata = facts.metadata
    local = {
        "rope_type": "default",
        "rope_theta": metadata.number(".rope.freq_base_swa", _GEMMA3_LOCAL_BASE),
    }
    cap = ".final_logit_softcapping"
    return {
        "model_type": "gemma3_text",
        "head_dim": facts.head_size,
        "rope_parameters": {
            "full_attention": rope_parameters(metadata, None, facts.head_size),
            "sliding_attention": local,
        },
        "sliding_window": metadata.count(".attention.sliding_window"),
        "query_pre_attn_scalar": _query_scalar(facts, _GEMMA3_27B_LAYERS),
        "final_logit_softcapping": metadata.number(cap) if metadata.has(cap) else None,
        **facts.layer_types,
    }


def _query_scalar(facts: ModelFacts, layers_of_27b: int) -> int:
    """The size that scores are scaled by. A file does not store it; the 27B models have one of their own."""
    metadata = facts.metadata
    if metadata.count(".block_count") == layers_of_27b:
        return metadata.count(".embedding_length") // metadata.count(".attention.head_count")
    return facts.head_size


def _gemma4(facts: ModelFacts) -> dict[str, Any]:
    """Gemma 4, of whose file the layers without a window have head sizes and angles of their own."""
    metadata, layers = facts.metadata, facts.metadata.layers
    kinds = facts.layer_types.get("layer_types")
    if kinds is None or len(kinds) != layers:
        key = "gemma4.attention.sliding_window_pattern"
        raise CheckpointError(f"{key} does not say for each of {layers} layers whether it has a window")
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    key_heads, widths = facts.by_layer(".attention.head_count_kv"), facts.by_layer(".feed_forward_length")
    near = [key_heads[layer] for layer in range(layers) if layer not in full] or key_heads
    shared = metadata.count(".attention.shared_kv_layers", 0, least=0, most=layers - 1)
    own = layers - shared
    wide = bool(shared) and widths[own] == 2 * widths[0]
    if widths != [widths[0]] * own + [widths[0] * (2 if wide else 1)] * shared:
        raise CheckpointError(
            "gemma4.feed_forward_length is not one width, doubled in layers that share keys or not"
        )
    head_size = metadata.count(".attention.key_length_swa")
    for lengths, size in (("_length", facts.head_size), ("_length_swa", head_size)):
        if metadata.count(f".attention.value{lengths}", size) != size:
            raise CheckpointError(f"gemma4.attention.value{lengths} is not key{lengths}, which is {size}")
    if metadata.count(".rope.dimension_count_swa", head_size) != head_size:
        raise CheckpointError("gemma4.rope.dimension_count_swa is not attention.key_length_swa")
    table, cap = facts.shapes.get("per_layer_token_embd.weight", ()), ".final_logit_softcapping"
    return {
        "model_type": "gemma4_text",
        "layer_types": kinds,
        "head_dim": head_size,
        "num_key_value_heads": near[0],
        "per_layer_config": {
            str(layer): {"head_dim": facts.head_size, "num_key_value_heads": key_heads[layer]}
            for layer in full
        },
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_v.weight" not in facts.shapes for layer in full if layer < own
        ),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": wide,
        "rope_parameters": {
            "full_attention": _proportional(facts),
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.number(".rope.freq_base_swa", _GEMMA3_LOCAL_BASE),
            },
        },
        "sliding_window": metadata.count(".attention.sliding_window"),
        "hidden_size_per_layer_input": metadata.count(".embedding_length_per_layer_input", 0, least=0),
        "vocab_size_per_layer_input": table[0] if len(table) == 2 else facts.vocab_size,
        "final_logit_softcapping": metadata.number(cap) if metadata.has(cap) else None,
        **_gemma4_experts(facts),
    }


def _gemma4_experts(facts: ModelFacts) -> dict[str, Any]:
    if not facts.metadata.count(".expert_count", 0, least=0):
        return {"enable_moe_block": False}
    sizes = facts.expert_sizes
    return {"enable_moe_block": True, "top_k_experts": sizes.pop("num_experts_per_tok"), **sizes}


def _proportional(facts: ModelFacts) -> dict[str, Any]:
    """The rotary parameters of layers without a window: the file's factors stop the frequencies behind some.

    Raises:
        CheckpointError: when the factors are others.
    """
    factors = facts.factors(ROPE_FACTORS)
    if factors is None:
        raise CheckpointError(f"tensor {ROPE_FACTORS} is missing")
    rotated = sum(factor == 1 for factor in factors)
    stops = [1.0] * rotated == list(factors[:rotated]) and all(f >= _STOPPING for f in factors[rotated:])
    if len(factors) != facts.head_size // 2 or not rotated or not stops:
        raise CheckpointError(f"{ROPE_FACTORS} is not {facts.head_size // 2} factors, first 1 and then 1e30")
    return {
        "rope_type": "proportional",
        "rope_theta": facts.metadata.number(".rope.freq_base"),
        "partial_rotary_factor": rotated / len(factors),
    }


GEMMA = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
}
