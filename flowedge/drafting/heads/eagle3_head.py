"""The EAGLE-3 draft head in its published layout: one decoder layer, and a vocabulary of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from flowedge.core.arrays import IntArray
from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.eagle_head import EagleAttention, KeyValueViews, Rotary
from flowedge.drafting.heads.head_files import (
    EMBEDDING_KEY,
    check_tensors,
    llama_config,
    read_config,
    read_tensors,
    write_head,
)

KIND = "EAGLE-3"
TAPPED_STATES = 3
OFFSETS_KEY, MASK_KEY = "d2t", "t2d"
# Heads with these draw on other layers, or wire their layer otherwise, than the published ones.
REFUSED_SETTINGS = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "norm_before_residual")


class Eagle3Layer(nn.Module):
    """A Llama decoder layer whose attention reads the token's embedding beside the hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn = EagleAttention(config, 2 * config.hidden_size)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rotary: Rotary, cache: KeyValueViews, mask: Tensor
    ) -> Tensor:
        """embedded and hidden [rows, hidden] -> [rows, hidden]."""
        inputs = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(inputs, rotary, cache, mask)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class Eagle3Head(nn.Module):
    """Predicts what stands for the target's next state, from the last one and the token that follows it.

    The state of a true row is `fc` of the target's hidden states entering three layers; below the true rows
    it is the head's output, before its final norm. Row t pairs state[t] with token[t+1] and has RoPE position
    t; `logits` of its output are those of token[t+2]. `embed_tokens` is None where the checkpoint leaves the
    embedding to be shared with the target.
    """

    d2t: Tensor  # int64 [draft_vocab], target id less draft id

    def __init__(
        self, config: LlamaConfig, draft_vocab: int, target_hidden: int, own_embedding: bool = False
    ) -> None:
        """target_hidden: width of the target's hidden states."""
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if own_embedding else None
        self.fc = nn.Linear(TAPPED_STATES * target_hidden, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        self.register_buffer(OFFSETS_KEY, torch.zeros(draft_vocab, dtype=torch.int64))
        self.rotary_emb = LlamaRotaryEmbedding(config)

    def forward(
        self,
        token_embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: KeyValueViews,
        mask: Tensor,
    ) -> Tensor:
        """The states [rows, hidden] that follow the rows given; arguments as those of EagleHead.forward."""
        rotary = self.rotary_emb(features, positions)
        predicted: Tensor = self.midlayer(token_embeddings, features, rotary, cache, mask)
        return predicted

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, draft_vocab] in float32 of predicted states [n, hidden]."""
        return linear(self.norm(states), self.lm_head.weight).float()

    def target_ids(self, draft_ids: IntArray) -> IntArray:
        """The target's ids of tokens of the draft vocabulary, in the same shape."""
        mapped: IntArray = draft_ids + self.d2t.numpy()[draft_ids]
        return mapped


def load_eagle3_head(directory: Path, dtype: torch.dtype) -> Eagle3Head:
    """The head of a published EAGLE-3 checkpoint folder, in evaluation mode with its weights in `dtype`.

    Raises CheckpointError.
    """
    settings = read_config(directory / "config.json")
    for name in REFUSED_SETTINGS:
        if settings.get(name):
            raise CheckpointError(f"{directory / 'config.json'} sets {name}, which is not supported")
    config = llama_config(settings, directory, KIND)
    draft_vocab = _size(settings, "draft_vocab_size", config.vocab_size, directory)
    target_hidden = _size(settings, "target_hidden_size", config.hidden_size, directory)
    tensors = read_tensors(directory)
    mask = tensors.pop(MASK_KEY, None)
    if draft_vocab == config.vocab_size:  # the ids are the target's, whatever the maps hold
        tensors[OFFSETS_KEY] = torch.zeros(draft_vocab, dtype=torch.int64)
    head = Eagle3Head(config, draft_vocab, target_hidden, own_embedding=EMBEDDING_KEY in tensors)
    check_tensors(head, tensors, directory, KIND)
    if draft_vocab != config.vocab_size:
        _check_maps(tensors[OFFSETS_KEY], mask, config.vocab_size, directory)
    # Assigned rather than head.to(dtype): that would round the rotary frequencies as well.
    head.load_state_dict(
        {name: value.to(dtype) if name != OFFSETS_KEY else value for name, value in tensors.items()},
        assign=True,
    )
    return head.requires_grad_(False).eval()


def save_eagle3_head(head: Eagle3Head, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    mask = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    mask[torch.arange(len(head.d2t)) + head.d2t] = True
    settings = {
        "draft_vocab_size": len(head.d2t),
        "target_hidden_size": head.fc.in_features // TAPPED_STATES,
        "dtype": str(head.fc.weight.dtype).removeprefix("torch."),
    }
    write_head(directory, head.config, settings, {**head.state_dict(), MASK_KEY: mask})


def _size(settings: dict[str, object], name: str, default: int, directory: Path) -> int:
    value = settings.get(name, default)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{directory / 'config.json'}: {name} is {value!r}, no size")
    return value


def _check_maps(offsets: Tensor, mask: Tensor | None, vocab: int, directory: Path) -> None:
    """Have the maps name each token of the draft vocabulary once, and agree with each other."""
    if offsets.dtype != torch.int64:
        raise CheckpointError(f"{directory}: {OFFSETS_KEY} is {offsets.dtype}, expected torch.int64")
    ids = torch.arange(len(offsets)) + offsets
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise CheckpointError(f"{directory}: {OFFSETS_KEY} leads to a token that is not within [0, {vocab})")
    named = torch.zeros(vocab, dtype=torch.bool)
    named[ids] = True
    if int(named.sum()) != len(ids):
        raise CheckpointError(f"{directory}: {OFFSETS_KEY} leads to a token twice")
    if mask is None:
        raise CheckpointError(f"{directory}: {MASK_KEY} is missing")
    if mask.dtype != torch.bool or mask.shape != named.shape or not torch.equal(mask, named):
        raise CheckpointError(f"{directory}: {MASK_KEY} does not mark the tokens that {OFFSETS_KEY} leads to")
