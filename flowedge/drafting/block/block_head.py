"""The block head in its published layouts: decoder layers over mask tokens and the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flowedge.core.errors import CheckpointError
from flowedge.drafting.block.block_layer import BlockHeadLayer
from flowedge.drafting.block.block_settings import BlockWiring, Selection
from flowedge.drafting.block.parallel_head import ParallelHead, load_parallel_head
from flowedge.drafting.heads.draft_head import OFFSETS_KEY, AttentionContext, DraftHead
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


class MarkovBias(nn.Module):
    """DSpark: a token adds the product of two small matrices to the logits of the token after it."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank, _weight=torch.zeros(vocab, rank))
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 [..., vocab] for int64 tokens [...]."""
        added: Tensor = self.markov_w2(self.markov_w1(tokens))
        return added.float()

    def corrected(self, logits: Tensor, ids: Tensor | None, tokens: Tensor, states: Tensor) -> Tensor:  # noqa: ARG002
        """Return the logits below nodes; arguments as in CandidateSelector."""
        added: Tensor = self(tokens)
        return logits + (added[:, : logits.shape[1]] if ids is None else added[:, ids])


class CandidateSelector(nn.Module):
    """DFlash2: a token changes how the likeliest tokens of the next depth share their probability.

    A candidate's logit gets the product of a vector of the token, one of the head's state and one of the
    candidate. The candidates together stay as likely as they were, and so do all other tokens: the head was
    trained to choose among its candidates alone.
    """

    def __init__(self, vocab: int, hidden: int, selection: Selection) -> None:
        super().__init__()
        self._candidates = selection.candidates
        self.hidden_projection = nn.Linear(hidden, selection.rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab, selection.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, selection.rank))

    def corrected(self, logits: Tensor, ids: Tensor | None, tokens: Tensor, states: Tensor) -> Tensor:
        """Return the logits [f, columns] below nodes.

        Args:
            logits: float32 [f, columns], those of the nodes' depths.
            ids: int64 [columns], the token of each column; None where columns are token ids.
            tokens: int64 [f], of the nodes.
            states: [f, hidden], the head's, which predict the logits.
        """
        before, columns = logits.topk(min(self._candidates, logits.shape[1]), dim=-1)
        candidates = self.successor_codebook[columns if ids is None else ids[columns]].float()
        context = self.predecessor_codebook[tokens].float() * self.hidden_projection(states).float()
        scores = before + (candidates @ context[..., None])[..., 0]
        kept = before.logsumexp(-1, keepdim=True) - scores.logsumexp(-1, keepdim=True)
        return logits.scatter(-1, columns, scores + kept)


class BlockHead(DraftHead):
    """A head over blocks of rows, of which each predicts a token: its own, or the one after it.

    A block is the last token of the text and mask tokens. Its rows see the text by its true states: their
    keys and values in each layer are projections of the same fused hidden states of the target.
    """

    def __init__(
        self,
        config: LlamaDecoderConfig,
        blocks: BlockWiring,
        *,
        own_embedding: bool = False,
        own_lm_head: bool = False,
    ) -> None:
        super().__init__(config, own_embedding)
        self.blocks = blocks
        vocab, hidden, eps = config.vocab_size, config.hidden_size, config.rms_norm_eps
        self.places = list(range(1, len(blocks.taps) + 1))
        self.fc = nn.Linear(len(blocks.taps) * hidden, hidden, bias=False)
        self.hidden_norm = RmsNorm(hidden, eps=eps)
        layer = partial(BlockHeadLayer, config, size=blocks.size, convolution=blocks.convolution)
        self.layers = nn.ModuleList([layer() for _ in blocks.layers])
        self.norm = RmsNorm(hidden, eps=eps)
        self.markov_head = MarkovBias(vocab, blocks.markov_rank) if blocks.markov_rank else None
        selection = blocks.selection
        self.candidate_selector = None if selection is None else CandidateSelector(vocab, hidden, selection)
        columns = vocab if blocks.draft_vocab is None else blocks.draft_vocab
        self.lm_head = nn.Linear(hidden, columns, bias=False) if own_lm_head else None
        if blocks.draft_vocab is not None:
            self.d2t = torch.zeros(columns, dtype=torch.int64)

    @property
    def correction(self) -> MarkovBias | CandidateSelector | None:
        """What a node's token changes below the node; None where it changes nothing."""
        return self.candidate_selector if self.markov_head is None else self.markov_head

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
        if self.lm_head is None:
            return proposals.logits(states)
        logits, softcap = self.lm_head(states).float(), self.blocks.softcap
        return logits if softcap is None else torch.tanh(logits / softcap) * softcap

    @property
    def is_recordable(self) -> bool:
        return False


def load_block_head(
    directory: Path, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> BlockHead | ParallelHead:
    """Load a published block head's folder, for evaluation and with weights in `dtype`.

    Raises:
        CheckpointError: when the files are no such head, or ask for what is not computed.
    """
    path = directory / CONFIG_NAME
    settings = read_settings(directory)
    blocks = BlockWiring.of(settings, path)
    config = block_config(settings, directory)
    if not blocks.mask_token < config.vocab_size:
        raise CheckpointError(
            f"{path}: mask token {blocks.mask_token} is not within vocab_size, which is {config.vocab_size}"
        )
    if blocks.eagle is not None:
        return load_parallel_head(directory, settings, config, blocks, dtype, device)
    tensors = {
        name.replace("_codebook.weight", "_codebook"): each
        for name, each in read_tensors(directory).items()
        if not name.startswith(CONFIDENCE_PREFIX)
    }
    mask = tensors.pop(MASK_KEY, None)
    owned = blocks.draft_vocab is not None
    if owned and (blocks.markov_rank or blocks.selection is not None):
        named = "markov_rank" if blocks.markov_rank else "selector_rank"
        raise CheckpointError(
            f"{path}: what a token changes ({named}) over a vocabulary of the head's own "
            "(draft_vocab_size) is not supported"
        )
    with errors_of_file(path, "the head that it asks for cannot be made"), torch.device("meta"):
        head = BlockHead(
            config,
            blocks,
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
    write_head(directory, head.config, {"model_type": "qwen3", **head.blocks.settings}, head.state_dict())
