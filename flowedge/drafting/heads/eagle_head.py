"""The EAGLE-1/2 draft head in its published layout: one decoder layer over next token and target feature."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from flowedge.drafting.heads.draft_head import AttentionContext, EagleAttention, HeadMlp, StepHead
from flowedge.drafting.heads.head_files import (
    EMBEDDING_KEY,
    fill_head,
    llama_config,
    read_tensors,
    write_head,
)
from flowedge.drafting.heads.head_settings import CONFIG_NAME
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file, read_json_object

KIND = "EAGLE-1/2"


class EagleLayer(nn.Module):
    """A Llama decoder layer without its input norm."""

    def __init__(self, config: LlamaDecoderConfig) -> None:
        super().__init__()
        self.self_attn = EagleAttention(config)
        self.mlp = HeadMlp(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for `hidden` of the same shape."""
        hidden = hidden + self.self_attn(hidden, context)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class EagleHead(StepHead):
    """A head whose states are the target's hidden states after the final norm, called features."""

    def __init__(self, config: LlamaDecoderConfig, fc_bias: bool, own_embedding: bool = False) -> None:
        super().__init__(config, own_embedding)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=fc_bias)
        self.layers = nn.ModuleList([EagleLayer(config)])

    @property
    def target_hidden_size(self) -> int:
        return int(self.config.hidden_size)

    def true_states(self, rows: Tensor) -> Tensor:
        return rows[:, : self.config.hidden_size]  # another drafter's taps follow

    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:
        return proposals.logits(states)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """What `fc` reads of rows, [..., 2 * hidden]."""
        return torch.cat((embedded, hidden), dim=-1)

    def finished(self, rows: Tensor) -> Tensor:
        """The states of rows that the layer has computed, which they are."""
        return rows

    def predict(self, embedded: Tensor, hidden: Tensor, context: AttentionContext) -> Tensor:
        predicted: Tensor = self.layers[0](self.fc(self.joined(embedded, hidden)), context)
        return predicted


def load_eagle_head(directory: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> EagleHead:
    """Load a published EAGLE-1/2 checkpoint folder, for evaluation and with weights in `dtype`."""
    settings = read_json_object(directory / CONFIG_NAME)
    config = llama_config(settings, directory, KIND)
    tensors = read_tensors(directory)
    with (
        errors_of_file(directory / CONFIG_NAME, "the head that it asks for cannot be made"),
        torch.device("meta"),
    ):
        head = EagleHead(config, bool(settings.get("bias", True)), own_embedding=EMBEDDING_KEY in tensors)
    fill_head(head, tensors, dtype, directory, KIND, device)
    return head


def save_eagle_head(head: EagleHead, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    write_head(directory, head.config, {"bias": head.fc.bias is not None}, head.state_dict())
