"""The model families FlowEdge can split: which transformers classes make up each one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from flowedge.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def layer_prefix(index: int) -> str:
    """The prefix of the tensor names of decoder layer `index`, with its trailing dot."""
    return f"model.layers.{index}."


@dataclass(frozen=True)
class Family:
    """The transformers classes of one family; every one is constructed from the family's own config."""

    config: type[Any]  # PretrainedConfig
    decoder_layer: type[Any]  # (config, layer_index) -> module
    norm: type[Any]  # (hidden_size, eps) -> module
    rotary: type[Any]  # (config) -> module giving (cos, sin) of positions
    causal_lm: type[Any]  # the whole model, for the reference


FAMILIES: dict[str, Family] = {
    "llama": Family(LlamaConfig, LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding, LlamaForCausalLM),
}


def family_of(model_type: str) -> Family:
    """The family registered for a config's `model_type`; CheckpointError names the supported ones."""
    family = FAMILIES.get(model_type)
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model type {model_type!r} is not supported; supported types: {supported}")
    return family
