"""Configs of Llama, and of families whose layers are like Llama's."""

from __future__ import annotations

from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf_families.architectures import LONG_FACTORS, SHORT_FACTORS
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.model_facts import ModelFacts
from flowedge.models.gguf_families.rope import longrope_parameters

# The context and the window of the Phi 3 models whose first files do not store the window.
_PHI3_CONTEXT, _PHI3_WINDOW = 4096, 2047


def _llama(facts: ModelFacts) -> dict[str, Any]:
    """Llama, Mistral or Mixtral, which share an architecture."""
    metadata, window = facts.metadata, _window(facts.metadata)
    shared = {"head_dim": facts.head_size, "rope_parameters": facts.rope}
    if metadata.count(".expert_count", 0, least=0):
        return shared | {
            "model_type": "mixtral",
            "num_local_experts": metadata.count(".expert_count"),
            "num_experts_per_tok": metadata.count(".expert_used_count"),
            "sliding_window": window,
        }
    if window is not None:
        return shared | {"model_type": "mistral", "sliding_window": window}
    return shared | {"model_type": "llama"} | _biases(facts)


def _mistral3(facts: ModelFacts) -> dict[str, Any]:
    """The text model of Ministral 3."""
    rope = facts.rope
    if scale := facts.metadata.number(".attention.temperature_scale", 0.0):
        rope["llama_4_scaling_beta"] = scale
    return {
        "model_type": "ministral3",
        "head_dim": facts.head_size,
        "rope_parameters": rope,
        "sliding_window": _window(facts.metadata),
    }


def granite(facts: ModelFacts) -> dict[str, Any]:
    """Granite 3, and Granite 4 with attention alone."""
    metadata = facts.metadata
    _no_window(metadata)
    multipliers = {
        "attention_multiplier": ".attention.scale",
        "embedding_multiplier": ".embedding_scale",
        "residual_multiplier": ".residual_scale",
        "logits_scaling": ".logit_scale",
    }
    return {
        "model_type": "granite",
        "rope_parameters": facts.rope,
        **{name: metadata.number(key, 1.0) for name, key in multipliers.items()},
        **_biases(facts),
    }


def _smollm3(facts: ModelFacts) -> dict[str, Any]:
    _no_window(facts.metadata)
    # A file does not store which layers have no rotation: every fourth, in all published models.
    return {"model_type": "smollm3", "rope_parameters": facts.rope, **_biases(facts)}


def _qwen2(facts: ModelFacts) -> dict[str, Any]:
    _no_window(facts.metadata)
    return {"model_type": "qwen2", "head_dim": facts.head_size, "rope_parameters": facts.rope}


def qwen3(facts: ModelFacts) -> dict[str, Any]:
    """Qwen 3, of which the models with experts have more fields."""
    _no_window(facts.metadata)
    return {
        "model_type": "qwen3",
        "head_dim": facts.head_size,
        "rope_parameters": facts.rope,
        "attention_bias": facts.has_bias("attn_q"),
    }


def _phi3(facts: ModelFacts) -> dict[str, Any]:
    metadata, size = facts.metadata, facts.head_size
    rotated = metadata.count(".rope.dimension_count", size)
    short, long = facts.factors(SHORT_FACTORS), facts.factors(LONG_FACTORS)
    context = original = metadata.count(".context_length")
    if short is not None and long is not None:
        rope, original = longrope_parameters(metadata, short, long)
    else:
        rope = facts.rope
    window = _window(metadata)
    if not metadata.has(".attention.sliding_window") and context == _PHI3_CONTEXT:
        window = _PHI3_WINDOW
    return {
        "model_type": "phi3",
        "rope_parameters": rope | {"partial_rotary_factor": rotated / size},
        "original_max_position_embeddings": original,
        "sliding_window": window,
    }


def _biases(facts: ModelFacts) -> dict[str, Any]:
    return {
        "attention_bias": facts.has_bias("attn_q"),
        "mlp_bias": facts.has_bias("ffn_up"),
    }


def _window(metadata: Metadata) -> int | None:
    """The sliding window in positions; None if there is none, which some files say by 0."""
    return metadata.count(".attention.sliding_window", 0, least=0) or None


def _no_window(metadata: Metadata) -> None:
    window = _window(metadata)
    if window is not None and window < metadata.count(".context_length"):
        raise CheckpointError(
            f"{metadata.architecture}.attention.sliding_window is {window}, and the file does not say which "
            "layers have it"
        )


LLAMA_LIKE = {
    "llama": _llama,
    "mistral3": _mistral3,
    "granite": granite,
    "smollm3": _smollm3,
    "qwen2": _qwen2,
    "qwen3": qwen3,
    "phi3": _phi3,
}
