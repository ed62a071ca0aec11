"""The block head in its published layouts: decoder layers over mask tokens and the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.core.errors import CheckpointError
from flowedge.drafting.block.block_settings import BlockWiring
from flowedge.drafting.heads.draft_head import (
    OFFSETS_KEY,
    AttentionContext,
    DraftHead,
    EagleAttention,
    HeadMlp,
)
from flowedge.drafting.heads.eagle3_head import MASK_KEY, check_maps
from flowedge.drafting.heads.head_files import (
    EMBEDDING_KEY,
    fill_head,
    llama_config,
    read_tensors,
    write_head,
)
from flowedge.drafting.heads.head_settings import CONFIG_NAME, read_settings
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.rotary import Angles
from flowedge.models.row_functions import RmsNorm
from flowedge.text.json_object import errors_of_file

KIND = "block"
LM_HEAD_KEY = "lm_head.weight"
# Of DSpark, whose blocks its confidence cuts. A draft tree is cut by the probabilities of its nodes.
CONFIDENCE_PREFIX = "confidence_head."
# Settings of the layers that say what rows see, which BlockWiring does.
_SEEN = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


class BlockHeadLayer(nn.Module):
    """A decoder layer whose queries and keys are normed, as in Qwen 3."""

    def __init__(self, config: LlamaDecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = EagleAttention(config, query_key_norms=True)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = HeadMlp(config)

    def forward(self, hidden: Tensor, context: AttentionContext) -> Tensor:
        """Return [..., rows, hidden] for rows of this shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), context)
        updated: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return updated


class MarkovBias(nn.Module):
    """What a token adds to the logits of the token after it, as a product of two small matrices."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank, _weight=torch.zeros(vocab, rank))
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 [..., vocab] for int64 tokens [...]."""
        added: Tensor = self.markov_w2(self.markov_w1(tokens))
        return added.float()


class BlockHead(DraftHead):
    """A head over blocks of rows, of which each predicts a token: its own, or the one after it.

    A block is the last token of the text and mask tokens. Its rows see the text by its true states: their
    keys and values in each layer are projections of the same fused hidden states of the target.
    """

    def __init__(
        self,
        config: LlamaDecoderConfig,
        wiring: BlockWiring,
        *,
        own_embedding: bool = False,
        own_lm_head: bool = False,
    ) -> None:
        super().__init__(config, own_embedding)
        self.wiring = wiring
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.places = list(range(1, len(wiring.taps) + 1))
        self.fc = nn.Linear(len(wiring.taps) * hidden, hidden, bias=False)
        self.hidden_norm = RmsNorm(hidden, eps=eps)
        self.layers = nn.ModuleList([BlockHeadLayer(config) for _ in wiring.layers])
        self.norm = RmsNorm(hidden, eps=eps)
        self.markov_head = MarkovBias(config.vocab_size, wiring.markov_rank) if wiring.markov_rank else None
        columns = config.vocab_size if wiring.draft_vocab is None else wiring.draft_vocab
        self.lm_head = nn.Linear(hidden, columns, bias=False) if own_lm_head else None
        if wiring.draft_vocab is not None:
            self.d2t = torch.zeros(columns, dtype=torch.int64)

    @property
    def target_hidden_size(self) -> int:
        return int(self.config.hidden_size)

    def true_states(self, rows: Tensor) -> Tensor:
        fused: Tensor = self.hidden_norm(self.fc(torch.cat(self.tapped(rows), dim=-1)))
        return fused

    def keys_values(self, fused: Tensor, rotation: Angles) -> Iterator[Tensor]:
        """Yield the text's keys and values in each layer, [2, ..., kv_heads, rows, head_dim].

        fused: [..., rows, hidden], true states.
        """
        layer: Any
        for layer in self.layers:
            yield torch.stack(layer.self_attn.keys_values(fused, rotation))

    def predict(self, embedded: Tensor, contexts: Sequence[AttentionContext]) -> Tensor:
        """Return the states [..., rows, hidden] of the rows of blocks, whose logits predict tokens.

        Args:
            embedded: [..., rows, hidden], the embeddings of the blocks' tokens.
            contexts: what rows see in each layer, the text included.
        """
        hidden = embedded
        for layer, context in zip(self.layers, contexts, strict=True):
            hidden = layer(hidden, context)
        states: Tensor = self.norm(hidden)
        return states

    def draft_logits(self, states: Tensor, proposals: ProposalHead) -> Tensor:
        return proposals.logits(states) if self.lm_head is None else self.lm_head(states).float()

    @property
    def is_recordable(self) -> bool:
        return False


def load_block_head(directory: Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> BlockHead:
    """Load a published block head's folder, for evaluation and with weights in `dtype`.

    Raises:
        CheckpointError: when the files are no such head, or ask for what is not computed.
    """
    path = directory / CONFIG_NAME
    settings = read_settings(directory)
    wiring = BlockWiring.of(settings, path)
    config = block_config(settings, directory)
    tensors = read_tensors(directory)
    tensors = {name: each for name, each in tensors.items() if not name.startswith(CONFIDENCE_PREFIX)}
    mask = tensors.pop(MASK_KEY, None)
    owned = wiring.draft_vocab is not None
    if owned and wiring.markov_rank:
        raise CheckpointError(
            f"{path}: a bias of tokens (markov_rank) over a vocabulary of the head's own is not supported"
        )
    if not wiring.mask_token < config.vocab_size:
        raise CheckpointError(
            f"{path}: mask token {wiring.mask_token} is not within vocab_size, which is {config.vocab_size}"
        )
    with errors_of_file(path, "the head that it asks for cannot be made"), torch.device("meta"):
        head = BlockHead(
            config,
            wiring,
            own_embedding=EMBEDDING_KEY in tensors,
            own_lm_head=owned or LM_HEAD_KEY in tensors,
        )
    offsets = tensors.get(OFFSETS_KEY)
    if not owned:
        tensors.pop(OFFSETS_KEY, None)
    fill_head(head, tensors, dtype, directory, KIND, device)
    if owned and offsets is not None:
        check_maps(offsets, mask, config.vocab_size, directory)
    return head


def block_config(settings: dict[str, Any], directory: Path) -> LlamaDecoderConfig:
    """The config of a block head's layers."""
    own = {name: value for name, value in settings.items() if name not in _SEEN}
    return llama_config(own, directory, KIND, one_layer=False)


def save_block_head(head: BlockHead, directory: Path) -> None:
    """Write config.json and model.safetensors in the published layout, each replaced in one step."""
    write_head(directory, head.config, {"model_type": "qwen3", **head.wiring.settings}, head.state_dict())
