"""The layer that comes with some models and predicts one token more, as a draft head.

It is a decoder layer of the model with full or latent attention, over the norms of the next token's embedding
and of the target's hidden state, wired like the modules of DeepSeek-V3 that predict further tokens (arXiv
2412.19437, section 2.2). Checkpoints of Qwen 3.5 and Qwen 3 Next have it as `mtp.*`, and GLM-4.7-Flash has it
as the layer behind the model's layers. The names here are Qwen's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.heads.draft_head import AttentionContext, StepHead
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.architecture import Architecture
from flowedge.models.attention.attention import Scoring
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.families.family import MTP_PREFIX
from flowedge.models.loading import LayerLoader, bytes_when_loaded, checkpoint_quant
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import check_available
from flowedge.models.rotary import Rotation
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file

FORMATS = ("none", "int8", "int4")  # of drafters
_DEPTHS = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
_OWN_EMBEDDING = "mtp_use_dedicated_embeddings"
# Of what is stored behind the model's layers: published checkpoints repeat the target's tensors there.
_COPIES = (f"{MTP_PREFIX}embed_tokens.", f"{MTP_PREFIX}lm_head.")


class MtpHead(StepHead):
    """A head whose states are normed outputs of its layer; those of true rows are the target's features.

    Features are the target's hidden states after its final norm. The LM head and the embedding are the
    target's.
    """

    def __init__(self, config: Any, architecture: Architecture) -> None:
        """Make a head, whose weights are not loaded, for a target of this config and architecture."""
        super().__init__(config, own_embedding=False, partial_rotary=architecture.partial_rotary)
        hidden = architecture.hidden
        norm = partial(RmsNorm, hidden, architecture.norm_eps, plus_one=architecture.norm_plus_one)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = norm(), norm()
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([DecoderLayer(architecture.ahead, 0, 0)])
        self.norm = norm()

    @property
    def target_hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def is_recordable(self) -> bool:
        return super().is_recordable and not self.layers[0].has_experts  # which are chosen on the host

    def true_states(self, rows: Tensor) -> Tensor:
        return rows[:, : self.target_hidden_size]  # another drafter's taps follow

    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:
        return proposals.logits(states)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What `fc` reads of rows, [..., 2 * hidden]."""
        return torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), dim=-1)

    def finished(self, rows: Tensor) -> Tensor:
        """The states of rows that the layer has computed."""
        states: Tensor = self.norm(rows)
        return states

    def predict(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        rows = self.fc(self.joined(embedded, hidden))
        return self.finished(self.layers[0](rows, _LayerAttention(context), Rotation(*context.rotation)))


@dataclass
class _LayerAttention:
    """An AttentionContext as a decoder layer asks for attention; scores have no bound and no sinks."""

    context: AttentionContext
    keys_values: Tensor | None = None

    def store_rows(self, _layer: int, keys_values: Tensor) -> None:
        self.keys_values = keys_values

    def attend(self, _layer: int, query: Tensor, _kv_heads: int, scoring: Scoring) -> Tensor:
        assert self.keys_values is not None, "a layer stores its rows first"
        keys, values = self.keys_values
        return self.context.attend(query[0], keys, values, scoring.scaling)


def has_mtp(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has a layer that predicts further tokens, in a family known to have it."""
    if checkpoint.family.predicts_ahead == "no":
        return False
    name = f"{MTP_PREFIX}fc.weight"
    return checkpoint.has(name) or checkpoint.is_quantised(name)


def mtp_tensors(checkpoint: Checkpoint) -> list[str]:
    """The names of the tensors of that layer, but for copies of the target's; empty where there is none."""
    if not has_mtp(checkpoint):
        return []
    copies = _COPIES if checkpoint.family.predicts_ahead == "behind layers" else ()
    return [name for name in checkpoint.names if name.startswith(MTP_PREFIX) and not name.startswith(copies)]


def load_mtp_head(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: str = "none",
    quant_cache: QuantCache | None = None,
) -> MtpHead:
    """Load the head that comes with a target, for evaluation, a few rows at a time.

    Args:
        dtype: of all weights that are not quantised.
        quant: the quantisation of linear layers; `quant_cache`: as of LayerLoader.

    Raises:
        BadRequestError: when the target has none.
        CheckpointError: when it is wired otherwise than this head, or a tensor does not fit the config.
    """
    device = torch.device(device)
    head = _empty_head(checkpoint)
    quant = checkpoint_quant(checkpoint, quant)
    check_available(quant, device)
    LayerLoader(checkpoint, quant, dtype, device, quant_cache).fill([(head, MTP_PREFIX)])
    with errors_of_file(checkpoint.place, "the rotary positions of config.json cannot be computed"):
        head.compute_rotary(device)
    return head


def mtp_bytes(
    checkpoint: Checkpoint, quant: str, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> int:
    """The bytes of the weights that `load_mtp_head` with the same arguments takes; errors likewise."""
    return bytes_when_loaded(_empty_head(checkpoint), checkpoint, MTP_PREFIX, quant, dtype, device)


def is_mtp_recordable(checkpoint: Checkpoint) -> bool:
    """Return `is_recordable` of the head that comes with a target. Errors as of `load_mtp_head`."""
    return _empty_head(checkpoint).is_recordable


def _empty_head(checkpoint: Checkpoint) -> MtpHead:
    """The head without memory for its weights."""
    if not has_mtp(checkpoint):
        raise BadRequestError(
            f"drafter mtp: {checkpoint.place} has no layer that predicts further tokens ({MTP_PREFIX}*, or "
            "one behind the model's layers), or is no model whose layer of this kind is known; draft by a "
            "head, by a language model or by ngram"
        )
    config, architecture = checkpoint.config, checkpoint.architecture
    for field in _DEPTHS:
        if (depths := getattr(config, field, None) or 1) != 1:
            raise CheckpointError(f"{checkpoint.place}: {field} is {depths!r}; a drafter has 1 such layer")
    if getattr(config, _OWN_EMBEDDING, False):
        raise CheckpointError(f"{checkpoint.place} sets {_OWN_EMBEDDING}, which is not supported")
    with (
        errors_of_file(checkpoint.place, "the layer that predicts further tokens cannot be made"),
        torch.device("meta"),
    ):
        head = MtpHead(config, architecture).requires_grad_(False).eval()
    modules = [path for path, each in head.named_modules() if not [*each.children()]]
    if architecture.latent is not None:  # as a quantiser stored what is read as `k_b` and `v_b`
        modules.append("layers.0.self_attn.kv_b_proj")
    known = tuple(f"{MTP_PREFIX}{path}." for path in modules)
    for name in mtp_tensors(checkpoint):
        if not name.startswith(known):
            raise CheckpointError(
                f"{checkpoint.place}: tensor {name} is no part of an mtp head as it is known"
            )
    for copy in (f"{each}weight" for each in _COPIES):
        if checkpoint.has(copy):
            checkpoint.check_shape(copy, (int(config.vocab_size), architecture.hidden))
    return head
