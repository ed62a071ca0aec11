"""The kinds of heads: the taps that each needs of the target, and the weights that it begins with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.core.errors import BadRequestError
from flowedge.drafting.block.block_head import BlockHead, load_block_head
from flowedge.drafting.block.block_settings import BlockLayer, BlockWiring
from flowedge.drafting.block.parallel_head import ParallelHead
from flowedge.drafting.heads.eagle3_head import Eagle3Head, load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.drafting.loading import check_sizes, check_width, drafter_directory
from flowedge.models.families.parts import head_size
from flowedge.models.files.config_support import FULL, max_positions, rope_by_layer_type
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.taps import Taps, eagle3_taps, spread_taps
from flowedge.training.documents import TrainingText
from flowedge.training.heads.block_training import BlockTraining
from flowedge.training.heads.eagle3_training import Eagle3Training, draft_vocabulary
from flowedge.training.heads.eagle_training import EagleTraining
from flowedge.training.heads.head_training import HeadTraining
from flowedge.training.settings import HeadKind, TrainingSettings
from flowedge.training.target import TrainingTarget

# Rotary types whose angles depend on the position alone, and mean the same to Llama's rotary embedding.
_BLOCK_TAPS = 5  # as published
_MARKOV_RANK = 256  # as published; a quarter of the width of narrower models
_COPIED_ROPE = frozenset({"linear", "llama3", "yarn"})


def head_taps(kind: HeadKind, config: Any) -> Taps:
    """The target's layers that are tapped to train a head. Errors as in eagle3_taps."""
    layers = int(config.num_hidden_layers)
    if kind == "eagle":
        return ()
    return eagle3_taps(layers) if kind == "eagle3" else spread_taps(layers, _BLOCK_TAPS)


def head_training(
    target: TrainingTarget, documents: Sequence[TrainingText], settings: TrainingSettings
) -> HeadTraining:
    """The training of a new head, or of the head in settings.init."""
    config, compute = target.checkpoint.config, torch_dtype(settings.dtype)
    generator = torch.Generator().manual_seed(settings.seed)
    directory = drafter_directory(settings.init) if settings.init else None
    vocab = int(config.vocab_size)
    frequent = draft_vocabulary(documents, vocab, min(settings.draft_vocab, vocab))
    head: EagleHead | Eagle3Head | BlockHead
    if directory is not None:
        loads: dict[str, Callable[..., EagleHead | Eagle3Head | BlockHead | ParallelHead]] = {
            "eagle": load_eagle_head,
            "eagle3": load_eagle3_head,
        }
        head = loads.get(settings.kind, load_block_head)(directory, torch.float32)
        if isinstance(head, BlockHead | ParallelHead) and head.blocks.only_drafts:
            raise BadRequestError(
                f"{directory} is a P-EAGLE or DFlash2 head, which can draft but not be trained; "
                "begin with another head, or without --init"
            )
        check_sizes(head, config, directory, str(target.checkpoint.place))
        check_width(head, config, directory, str(target.checkpoint.place))
        read = None if isinstance(head, EagleHead) else _read_layers(head)
        if read not in (None, target.taps):
            raise BadRequestError(
                f"{directory} reads the layers {list(read or ())}; training goes on with heads that read "
                f"{list(target.taps)}"
            )
        head.embed_tokens = None  # the target's is used from now on
    elif settings.kind == "eagle3":
        head = new_eagle3_head(config, frequent, target.lm_head.parameter.float().cpu(), generator)
    elif settings.kind == "eagle":
        head = new_head(config, generator)
    else:
        head = new_block_head(config, settings, target.taps, mask_token(target.tokenizer), generator)
    learnt = frequent if len(frequent) < vocab else None
    if isinstance(head, BlockHead):
        return BlockTraining(head, target, compute, learnt)
    if isinstance(head, Eagle3Head):
        return Eagle3Training(head, target, settings.steps_of_a_row, compute)
    return EagleTraining(
        head, target, settings.cross_entropy_weight, settings.steps_of_a_row, compute, learnt
    )


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


def new_block_head(
    config: Any,
    settings: TrainingSettings,
    taps: Taps,
    mask: int,
    generator: torch.Generator | None = None,
) -> BlockHead:
    """A random block head for a target's config, in float32, that shares the target's embedding.

    mask: the token that stands for the tokens of a block that are to be predicted.
    """
    own = _head_config(config, settings.head_layers)
    markov = settings.kind == "dspark"
    wiring = BlockWiring(
        settings.block_size,
        mask,
        taps,
        (BlockLayer(causal=settings.kind == "jetspec"),) * settings.head_layers,
        shifted=markov,
        markov_rank=min(_MARKOV_RANK, own.hidden_size // 4) if markov else 0,
    )
    head = BlockHead(own, wiring)
    _randomise(head, own.initializer_range, generator)
    if head.markov_head is not None:
        nn.init.normal_(head.markov_head.markov_w1.weight, std=own.initializer_range, generator=generator)
    return head


def mask_token(tokenizer: Any) -> int:
    """A token that no answer has, for the mask of a block head.

    Raises:
        BadRequestError: when the tokenizer has no such token.
    """
    for name in ("mask", "pad", "unk", "bos"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None and token != tokenizer.eos_token_id:
            return int(token)
    raise BadRequestError(
        "the model's tokenizer has no mask, padding, unknown or first token, of which a block head needs "
        "one; train an EAGLE head"
    )


def _read_layers(head: Eagle3Head | BlockHead) -> Taps | None:
    """The layers that a head's config names, if any."""
    return head.wiring.layers if isinstance(head, Eagle3Head) else head.blocks.taps


def _head_config(target: Any, layers: int = 1) -> LlamaDecoderConfig:
    """The config of Llama layers with the sizes, vocabulary and rotary angles of a target's config."""
    return LlamaDecoderConfig(
        vocab_size=int(target.vocab_size),
        hidden_size=int(target.hidden_size),
        intermediate_size=int(target.intermediate_size),
        num_hidden_layers=layers,
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
