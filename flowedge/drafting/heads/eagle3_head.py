"""The EAGLE-3 draft head in its published layout: one decoder layer, and a vocabulary of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flowedge.core.arrays import IntArray
from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.draft_head import AttentionContext, DraftHead, EagleAttention, HeadMlp
from flowedge.drafting.heads.head_files import (
    CONFIG_NAME,
    EMBEDDING_KEY,
    fill_head,
    llama_config,
    read_tensors,
    write_head,
)
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.host.copies import to_host
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file, read_json_object

KIND = "EAGLE-3"
TAPPED_STATES = 3
OFFSETS_KEY, MASK_KEY = "d2t", "t2d"
# Heads with these settings tap other layers, or wire their layer otherwise, than the published heads.
REFUSED_SETTINGS = ("eagle_config", "eagle_aux_hidden_state_layer_ids", "norm_before_residual")


class Eagle3Layer(nn.Module):
    """A Llama decoder layer whose attention reads the token's embedding beside the hidden state."""

    def __init__(self, config: LlamaDecoderConfig) -> None:
        super().__init__()
        self.self_attn = EagleAttention(config, 2 * config.hidden_size)
        self.mlp = HeadMlp(config)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for `embedded` and `hidden` of the same shape."""
        inputs = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(inputs, context)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class Eagle3Head(DraftHead):
    """A head whose states are its own output before the final norm.

    The state of a true row is `fc` of the inputs of three layers of the target.
    """

    d2t: Tensor  # int64 [draft_vocab], the target's token id minus the draft token id

    def __init__(
        self, config: LlamaDecoderConfig, draft_vocab: int, target_hidden: int, own_embedding: bool = False
    ) -> None:
        """Create a head for a target whose hidden states are `target_hidden` wide."""
        super().__init__(config, own_embedding)
        self.fc = nn.Linear(TAPPED_STATES * target_hidden, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        self.register_buffer(OFFSETS_KEY, torch.zeros(draft_vocab, dtype=torch.int64))

    @property
    def target_hidden_size(self) -> int:
        return self.fc.in_features // TAPPED_STATES

    @property
    def vocabulary(self) -> IntArray:
        return self.target_ids(np.arange(self.lm_head.out_features))

    def true_states(self, rows: Tensor) -> Tensor:
        fused: Tensor = self.fc(rows[:, -self.fc.in_features :])
        return fused

    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:  # noqa: ARG002
        return self.logits(states)

    def predict(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        predicted: Tensor = self.midlayer(embedded, hidden, context)
        return predicted

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, draft_vocab] in float32 of states [n, hidden]."""
        logits: Tensor = self.lm_head(self.norm(states)).float()
        return logits

    def target_ids(self, draft_ids: IntArray) -> IntArray:
        """The target's ids of tokens of the draft vocabulary, in the same shape."""
        (offsets,) = to_host(self.d2t)
        mapped: IntArray = draft_ids + offsets[draft_ids]
        return mapped


def load_eagle3_head(directory: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> Eagle3Head:
    """Load a published EAGLE-3 checkpoint folder, for evaluation and with weights in `dtype`."""
    settings = read_json_object(directory / CONFIG_NAME)
    for name in REFUSED_SETTINGS:
        if settings.get(name):
            raise CheckpointError(f"{directory / CONFIG_NAME} sets {name}, which is not supported")
    config = llama_config(settings, directory, KIND)
    draft_vocab = _size(settings, "draft_vocab_size", config.vocab_size, directory)
    target_hidden = _size(settings, "target_hidden_size", config.hidden_size, directory)
    tensors = read_tensors(directory)
    mask = tensors.pop(MASK_KEY, None)
    if draft_vocab == config.vocab_size:  # the ids are the target's, whatever the maps hold
        tensors[OFFSETS_KEY] = torch.zeros(draft_vocab, dtype=torch.int64)
    with (
        errors_of_file(directory / CONFIG_NAME, "the head that it asks for cannot be made"),
        torch.device("meta"),
    ):
        head = Eagle3Head(config, draft_vocab, target_hidden, own_embedding=EMBEDDING_KEY in tensors)
    offsets = tensors.get(OFFSETS_KEY)
    fill_head(head, tensors, dtype, directory, KIND, device)
    if offsets is not None and draft_vocab != config.vocab_size:
        _check_maps(offsets, mask, config.vocab_size, directory)
    return head


def save_eagle3_head(head: Eagle3Head, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    mask = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    mask[torch.arange(len(head.d2t)) + head.d2t] = True
    settings = {"draft_vocab_size": len(head.d2t), "target_hidden_size": head.target_hidden_size}
    write_head(directory, head.config, settings, {**head.state_dict(), MASK_KEY: mask})


def _size(settings: dict[str, object], name: str, default: int, directory: Path) -> int:
    value = settings.get(name, default)
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{directory / CONFIG_NAME}: {name} is {value!r}, not a number of 1 or more")
    return value


def _check_maps(offsets: Tensor, mask: Tensor | None, vocab: int, directory: Path) -> None:
    """Check that the maps name each token of the draft vocabulary once, and agree with each other."""
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
