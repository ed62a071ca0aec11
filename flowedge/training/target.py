"""The frozen target, as training needs it: features, logits and embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowedge.errors import CapacityError
from flowedge.models.block import LayerBlock
from flowedge.models.cache import SessionCache
from flowedge.models.checkpoint import Checkpoint
from flowedge.models.features import max_positions
from flowedge.models.head import LMHead, load_embedding
from flowedge.models.sampler import TokenSampler
from flowedge.models.taps import Taps
from flowedge.models.tokenizer import eos_token_ids, load_tokenizer
from flowedge.sampling import SamplingParams

CHUNK_ROWS = 256  # rows of one forward: the bound of the memory of activations


@dataclass(frozen=True)
class TrainingTarget:
    """A target whose weights are loaded."""

    checkpoint: Checkpoint
    block: LayerBlock
    lm_head: LMHead
    embedding: nn.Embedding
    tokenizer: Any
    eos: frozenset[int]
    taps: Taps = ()

    @classmethod
    def load(cls, source: str, quant: str, dtype: torch.dtype, taps: Taps = ()) -> TrainingTarget:
        """All layers of a directory, hub id or "bundled"; CheckpointError as in Checkpoint.open."""
        checkpoint = Checkpoint.open(source)
        tokenizer = load_tokenizer(checkpoint)
        layers = checkpoint.config.num_hidden_layers
        block = LayerBlock.load(checkpoint, 0, layers, quant=quant, dtype=dtype)
        lm_head = LMHead.load(checkpoint, dtype=dtype)
        embedding = load_embedding(checkpoint, dtype=dtype, shared_with=lm_head)
        eos = eos_token_ids(checkpoint, tokenizer)
        return cls(checkpoint, block, lm_head, embedding, tokenizer, eos, taps)

    @property
    def context(self) -> int:
        """The longest text it takes, in tokens."""
        return max_positions(self.checkpoint.config)

    def features(self, tokens: npt.NDArray[np.int32]) -> Tensor:
        """The rows of a text of tokens [length], float32 [length, hidden * (1 + taps)].

        A row is the hidden state after the final norm, then what is tapped (see models/taps.py).
        """
        ids = torch.from_numpy(tokens.astype(np.int64))
        chunks = list(self._forward(ids, self.block.new_cache(len(ids)), 0, self.taps))
        # A copy, made outside of inference mode: autograd refuses to save tensors that were made in it.
        return torch.cat([chunk.float() for chunk in chunks])

    def embed(self, tokens: npt.NDArray[np.int32]) -> Tensor:
        """The embeddings [..., hidden] of tokens [...], float32, as drafters give them to their heads."""
        with torch.no_grad():
            embedded: Tensor = self.embedding(torch.from_numpy(tokens.astype(np.int64)))
        return embedded.float()

    def answer(self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int) -> list[int]:
        """What the target answers to a prompt of token ids, its eos included.

        CapacityError when the prompt leaves no room in the context.
        """
        room = min(max_new_tokens, self.context - len(prompt))
        if room < 1:
            raise CapacityError(
                f"a prompt of {len(prompt)} tokens leaves no room in a context of {self.context}"
            )
        sampler = TokenSampler(sampling, self.block.vocab_size)
        cache = self.block.new_cache(len(prompt) + room)
        pending, cached = torch.tensor(prompt, dtype=torch.int64), 0
        answer: list[int] = []
        while len(answer) < room and not (answer and answer[-1] in self.eos):
            for chunk in self._forward(pending, cache, cached):
                last = chunk[-1:]
            cached += len(pending)
            answer.append(sampler.draw(self.lm_head.logits(last)[0], cached))
            pending = torch.tensor(answer[-1:], dtype=torch.int64)
        return answer

    def _forward(self, ids: Tensor, cache: SessionCache, cached: int, taps: Taps = ()) -> Iterator[Tensor]:
        """The rows of ids [rows] that follow `cached` rows, some at a time."""
        for chunk in torch.split(ids, CHUNK_ROWS):
            positions = np.arange(cached, cached + len(chunk))
            parents = np.append(-1, positions[:-1])
            hidden = self.block.forward(chunk, positions, cache, cached, cached, parents, _never, taps)
            assert hidden is not None, "nothing aborts it"
            yield hidden
            cached += len(chunk)


def _never() -> bool:
    return False
