"""The EAGLE-3 draft head in its published layout: one decoder layer, and a vocabulary of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.draft_head import (
    OFFSETS_KEY,
    AttentionContext,
    EagleAttention,
    HeadMlp,
    StepHead,
)
from flowedge.drafting.heads.head_files import (
    EMBEDDING_KEY,
    fill_head,
    llama_config,
    read_tensors,
    write_head,
)
from flowedge.drafting.heads.head_settings import CONFIG_NAME, Eagle3Wiring, number_of, read_settings
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file

KIND = "EAGLE-3"
MASK_KEY = "t2d"
MASK_STATE = "mask_hidden"  # of P-EAGLE
QUERY_NORM = "midlayer.self_attn.q_norm.weight"
PUBLISHED = Eagle3Wiring()  # that of the first heads


class Eagle3Layer(nn.Module):
    """A Llama decoder layer whose attention reads the token's embedding beside the hidden state."""

    def __init__(
        self, config: LlamaDecoderConfig, *, norm_before_residual: bool = False, query_key_norms: bool = False
    ) -> None:
        """norm_before_residual: as of Eagle3Wiring; query_key_norms: whether queries and keys have norms."""
        super().__init__()
        self._norm_before_residual = norm_before_residual
        self.self_attn = EagleAttention(config, 2 * config.hidden_size, query_key_norms=query_key_norms)
        self.mlp = HeadMlp(config)
        self.hidden_norm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for `embedded` and `hidden` of the same shape."""
        normed = self.hidden_norm(hidden)
        inputs = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        hidden = (normed if self._norm_before_residual else hidden) + self.self_attn(inputs, context)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class Eagle3Head(StepHead):
    """A head whose states are its own output before the final norm, or behind it (see Eagle3Wiring).

    The state of a true row is `fc` of the inputs of some layers of the target.

    Attributes:
        wiring: what the head computes.
    """

    d2t: Tensor

    def __init__(
        self,
        config: LlamaDecoderConfig,
        draft_vocab: int,
        target_hidden: int,
        own_embedding: bool = False,
        wiring: Eagle3Wiring = PUBLISHED,
        query_key_norms: bool = False,
    ) -> None:
        """Create a head for a target whose hidden states are `target_hidden` wide.

        query_key_norms: whether its queries and keys have norms, as in a layer of Qwen 3.
        """
        super().__init__(config, own_embedding)
        self.wiring, self._target_hidden = wiring, target_hidden
        self.places = list(range(1, wiring.taps + 1))
        width, eps = wiring.taps * target_hidden, config.rms_norm_eps
        self.input_norm = RmsNorm(width, eps=eps) if wiring.norm_before_fc else None
        norms = [RmsNorm(target_hidden, eps=eps) for _ in range(wiring.taps)] if wiring.fc_norm else []
        self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(
            config, norm_before_residual=wiring.norm_before_residual, query_key_norms=query_key_norms
        )
        self.norm = RmsNorm(config.hidden_size, eps=eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab, bias=False)
        self.d2t = torch.zeros(draft_vocab, dtype=torch.int64)

    @property
    def target_hidden_size(self) -> int:
        return self._target_hidden

    def true_states(self, rows: Tensor) -> Tensor:
        return self.fused(self.tapped(rows))

    def fused(self, tapped: Sequence[Tensor]) -> Tensor:
        """The states [..., hidden] that `fc` makes of tapped states [..., target_hidden]."""
        if self.wiring.fc_norm:
            tapped = [norm(each) for norm, each in zip(self.fc_norm, tapped, strict=True)]
        joined = torch.cat(list(tapped), dim=-1)
        fused: Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return fused

    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:  # noqa: ARG002
        return self.logits(states)

    def predict(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        return self.finished(self.midlayer(embedded, hidden, context))

    def finished(self, rows: Tensor) -> Tensor:
        """The states of rows behind the last layer."""
        return self.norm(rows) if self.wiring.norm_output else rows

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, draft_vocab] in float32 of states [n, hidden]."""
        logits: Tensor = self.lm_head(states if self.wiring.norm_output else self.norm(states))
        return logits.float()


Made = TypeVar("Made", bound=Eagle3Head)


def load_eagle3_head(directory: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> Eagle3Head:
    """Load a published EAGLE-3 checkpoint folder, for evaluation and with weights in `dtype`."""
    settings = read_settings(directory)
    wiring = Eagle3Wiring.of(settings, directory / CONFIG_NAME)
    config = llama_config(settings, directory, KIND)
    make = partial(Eagle3Head, config, wiring=wiring)
    return load_of_eagle3(make, directory, settings, config, dtype, device, KIND)


def load_of_eagle3(
    make: Callable[..., Made],
    directory: Path,
    settings: dict[str, Any],
    config: LlamaDecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str,
    kind: str,
) -> Made:
    """Load a head of EAGLE-3's layout that `make` makes.

    Args:
        make: is given the arguments of Eagle3Head but for the config and the wiring.
        settings: of the head; config: that of its layers.
        kind: the name of the head in errors.

    Raises:
        CheckpointError: when the files do not fit the config.
    """
    path = directory / CONFIG_NAME
    draft_vocab = number_of({"draft_vocab_size": config.vocab_size} | settings, "draft_vocab_size", path, 1)
    target_hidden = number_of(
        {"target_hidden_size": config.hidden_size} | settings, "target_hidden_size", path, 1
    )
    stored = read_tensors(directory)
    tensors = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in stored.items()}
    del stored  # so that tensors are freed one by one
    mask = tensors.pop(MASK_KEY, None)
    if MASK_STATE in tensors:
        tensors[MASK_STATE] = tensors[MASK_STATE].reshape(1, -1)  # [1, 1, width] in most files
    if draft_vocab == config.vocab_size:  # the ids are the target's, whatever the maps hold
        tensors[OFFSETS_KEY] = torch.zeros(draft_vocab, dtype=torch.int64)
    with errors_of_file(path, "the head that it asks for cannot be made"), torch.device("meta"):
        head = make(
            draft_vocab=draft_vocab,
            target_hidden=target_hidden,
            own_embedding=EMBEDDING_KEY in tensors,
            query_key_norms=QUERY_NORM in tensors,
        )
    offsets = tensors.get(OFFSETS_KEY)
    fill_head(head, tensors, dtype, directory, kind, device)
    if offsets is not None and draft_vocab != config.vocab_size:
        check_maps(offsets, mask, config.vocab_size, directory)
    return head


def save_eagle3_head(head: Eagle3Head, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    mask = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    mask[torch.arange(len(head.d2t)) + head.d2t] = True
    sizes = {"draft_vocab_size": len(head.d2t), "target_hidden_size": head.target_hidden_size}
    settings = sizes | head.wiring.settings
    write_head(directory, head.config, settings, {**head.state_dict(), MASK_KEY: mask})


def check_maps(offsets: Tensor, mask: Tensor | None, vocab: int, directory: Path) -> None:
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
