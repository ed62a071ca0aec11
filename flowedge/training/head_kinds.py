"""The kinds of heads: the taps that each needs of the target, and the weights that it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.core.errors import BadRequestError
from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.drafting.loading import check_sizes, check_width, drafter_directory
from flowedge.models.families.parts import head_size
from flowedge.models.files.config_support import FULL, max_positions, rope_by_layer_type
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.taps import Taps, eagle3_taps
from flowedge.training.documents import TrainingText
from flowedge.training.eagle3_training import Eagle3Training, draft_vocabulary
from flowedge.training.eagle_training import EagleTraining
from flowedge.training.head_training import HeadTraining
from flowedge.training.settings import HeadKind, TrainingSettings
from flowedge.training.target import TrainingTarget

# Rotary types whose angles depend on the position alone, and mean the same to Llama's rotary embedding.
_COPIED_ROPE = frozenset({"linear", "llama3", "yarn"})


def head_taps(kind: HeadKind, config: Any) -> Taps:
    """The target's layers that are tapped to train a head. Errors as in eagle3_taps."""
    return () if kind == "eagle" else eagle3_taps(int(config.num_hidden_layers))


def head_training(
    target: TrainingTarget, documents: Sequence[TrainingText], settings: TrainingSettings
) -> HeadTraining:
    """The training of a new head, or of the head in settings.init."""
    config, compute = target.checkpoint.config, torch_dtype(settings.dtype)
    generator = torch.Generator().manual_seed(settings.seed)
    directory = drafter_directory(settings.init) if settings.init else None
    head: EagleHead | Eagle3Head
    if directory is not None:
        load = load_eagle3_head if settings.kind == "eagle3" else load_eagle_head
        head = load(directory, torch.float32)
        check_sizes(head, config, directory, str(target.checkpoint.place))
        check_width(head, config, directory, str(target.checkpoint.place))
        if isinstance(head, Eagle3Head) and head.wiring.layers not in (None, target.taps):
            raise BadRequestError(
                f"{directory} reads the layers {list(head.wiring.layers or ())}; training goes on with heads "
                f"that read {list(target.taps)}"
            )
        head.embed_tokens = None  # the target's is used from now on
    elif settings.kind == "eagle3":
        size = min(settings.draft_vocab, int(config.vocab_size))
        ids = draft_vocabulary(documents, int(config.vocab_size), size)
        head = new_eagle3_head(config, ids, target.lm_head.parameter.float().cpu(), generator)
    else:
        head = new_head(config, generator)
    if isinstance(head, Eagle3Head):
        return Eagle3Training(head, target, settings.unroll, compute)
    return EagleTraining(head, target, settings.cross_entropy_weight, compute)


def new_head(config: Any, generator: torch.Generator | None = None) -> EagleHead:
    """A random EAGLE-1/2 head for a target's config, in float32, that shares the target's embedding."""
    own = _head_config(config)
    head = EagleHead(own, fc_bias=True)
    _randomise(head, own.initializer_range, generator)
    return head


def new_eagle3_head(
    config: Any, ids: Tensor, logits_weight: Tensor, generator: torch.Generator | None = None
) -> Eagle3Head:
    """A random EAGLE-3 head for a target's config, in float32, that shares the target's embedding.

    Args:
        ids: int64 [draft_vocab], ascending, the target's ids of the draft vocabulary.
        logits_weight: the target's LM head [vocab, hidden]; the head's own begins with its rows at `ids`.
    """
    own = _head_config(config)
    head = Eagle3Head(own, len(ids), own.hidden_size)
    _randomise(head, own.initializer_range, generator)
    with torch.no_grad():
        head.d2t.copy_(ids - torch.arange(len(ids)))
        head.lm_head.weight.copy_(logits_weight[ids])
    return head


def _head_config(target: Any) -> LlamaDecoderConfig:
    """The config of a Llama layer with the sizes, vocabulary and rotary angles of a target's config."""
    return LlamaDecoderConfig(
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
    if rope.get("rope_type") not in _COPIED_ROPE:
        return {"rope_type": "default", "rope_theta": theta}
    return {name: value for name, value in rope.items() if name != "partial_rotary_factor"}
