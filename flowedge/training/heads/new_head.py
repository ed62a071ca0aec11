"""Fresh heads for a target of any supported family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from flowedge.drafting.heads.eagle3_head import Eagle3Head
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.models.checkpoint.config_support import FULL, max_positions, rope_by_layer_type
from flowedge.models.layers.cache import head_size

# Rotary types whose angles depend on the position alone, and mean the same to Llama's rotary embedding.
_KEPT_ROPE = frozenset({"linear", "llama3", "yarn"})


def head_config(target: Any) -> LlamaConfig:
    """The config of a Llama layer with a target config's width, heads, vocabulary and rotary angles."""
    return LlamaConfig(
        vocab_size=int(target.vocab_size),
        hidden_size=int(target.hidden_size),
        intermediate_size=int(target.intermediate_size),
        num_hidden_layers=1,
        num_attention_heads=int(target.num_attention_heads),
        num_key_value_heads=int(target.num_key_value_heads),
        head_dim=head_size(target),
        max_position_embeddings=max_positions(target),
        initializer_range=float(target.initializer_range),
        rms_norm_eps=float(target.rms_norm_eps),
        rope_parameters=_rope(target),
        tie_word_embeddings=bool(target.tie_word_embeddings),
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
    )


def new_head(target: Any, generator: torch.Generator | None = None) -> EagleHead:
    """A random head for a target config, in float32, that shares the target's embedding."""
    config = head_config(target)
    head = EagleHead(config, fc_bias=True)
    _randomise(head, config.initializer_range, generator)
    return head


def new_eagle3_head(
    target: Any, ids: Tensor, logits_weight: Tensor, generator: torch.Generator | None = None
) -> Eagle3Head:
    """A random EAGLE-3 head for a target config, in float32, that shares the target's embedding.

    ids: int64 [draft_vocab], ascending, the target's ids of its vocabulary; logits_weight: the target's LM
    head [vocab, hidden], whose rows for those its own LM head begins with.
    """
    config = head_config(target)
    head = Eagle3Head(config, len(ids), config.hidden_size)
    _randomise(head, config.initializer_range, generator)
    with torch.no_grad():
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.lm_head.weight.copy_(logits_weight[ids])
    return head


def _randomise(head: nn.Module, deviation: float, generator: torch.Generator | None) -> None:
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=deviation, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _rope(target: Any) -> dict[str, Any]:
    by_type = rope_by_layer_type(target)
    rope = by_type.get(None) or by_type.get(FULL) or next(iter(by_type.values()))
    theta = float(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") not in _KEPT_ROPE:
        return {"rope_type": "default", "rope_theta": theta}
    return {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
