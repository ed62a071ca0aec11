"""A whole model as a chain of blocks in one process, for comparison with transformers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead


def never() -> bool:
    return False


class Pipeline:
    """Blocks of an even split with their caches, and the LM head; `rows` rows are cached."""

    def __init__(self, checkpoint: Checkpoint, blocks: int, capacity: int = 256, **load: Any) -> None:
        layers = checkpoint.config.num_hidden_layers
        cuts = [layers * i // blocks for i in range(blocks + 1)]
        self.blocks = [LayerBlock.load(checkpoint, a, b, **load) for a, b in itertools.pairwise(cuts)]
        self.caches = [block.new_cache(capacity) for block in self.blocks]
        self.head = LMHead.load(checkpoint)
        self.context = 0
        self.parents: list[int] = []  # of the draft tail, slots
        self.depths: list[int] = []

    @property
    def cached(self) -> int:
        return self.context + len(self.parents)

    def commit(self, tokens: Sequence[int]) -> torch.Tensor:
        """Computes committed rows as a chain; logits [n, vocab]."""
        n = len(tokens)
        parents = [-1, *range(self.context, self.context + n - 1)]
        logits = self._forward(tokens, list(range(self.context, self.context + n)), parents)
        self.context += n
        return logits

    def draft(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Computes one tree segment; parents are slots or -1."""
        for parent in parents:
            self.depths.append(0 if parent == -1 else self.depths[parent - self.context] + 1)
            self.parents.append(parent)
        self.parents, grown = self.parents[: -len(tokens)], self.parents
        logits = self._forward(tokens, [self.context + depth for depth in self.depths[-len(tokens) :]], grown)
        self.parents = grown
        return logits

    def prune(self, accepted: Sequence[int], kept: Sequence[int]) -> None:
        """Accepted slots become context; the kept ones, a subtree, stay the tail."""
        retained = [*accepted, *kept]
        for cache in self.caches:
            cache.gather(self.context, retained)
        new_slot = {old: self.context + i for i, old in enumerate(retained)}
        old_context = self.context
        self.context += len(accepted)
        self.parents = [
            p if (p := new_slot[self.parents[slot - old_context]]) >= self.context else -1 for slot in kept
        ]
        self.depths = [self.depths[slot - old_context] - len(accepted) for slot in kept]

    def _forward(
        self, tokens: Sequence[int], positions: Sequence[int], parents: Sequence[int]
    ) -> torch.Tensor:
        hidden: torch.Tensor | None = torch.tensor(tokens)
        for block, cache in zip(self.blocks, self.caches, strict=True):
            assert hidden is not None
            hidden = block.forward(
                hidden,
                np.array(positions, dtype=np.int64),
                cache,
                self.cached,
                self.context,
                np.array(parents, dtype=np.int64),
                never,
            )
        assert hidden is not None
        return self.head.logits(hidden)
