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
        self.head = LMHead.load(checkpoint, quant=load.get("quant", "none"))
        self._capacity = capacity
        self.restart()

    def restart(self) -> None:
        """Begins with empty caches."""
        self.caches = [block.new_cache(self._capacity) for block in self.blocks]
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

    def lineage(self, slot: int) -> list[int]:
        """The tail slots from the context down to this one."""
        path = [int(slot)]
        while (parent := self.parents[path[0] - self.context]) != -1:
            path.insert(0, parent)
        return path

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
        return self.head.logits(hidden.cpu())


class History:
    """A random history of drafts and prunes on a pipeline, after a prompt that is cut at random.

    The parent of a draft row is one of the last `reach` slots, or the context where these are fewer.
    """

    def __init__(self, pipeline: Pipeline, seed: int, prompt: int, reach: int = 6) -> None:
        self.pipeline, self.reach = pipeline, reach
        self.rng = np.random.default_rng(seed)
        self.vocab = pipeline.blocks[0].vocab_size
        self.context: list[int] = self.rng.integers(0, self.vocab, prompt).tolist()
        self.tail: list[int] = []
        cuts = np.sort(self.rng.choice(np.arange(1, prompt), 3, replace=False))
        for start, stop in itertools.pairwise([0, *cuts.tolist(), prompt]):
            self.prompt_logits = pipeline.commit(self.context[start:stop])

    def draft(self, most: int) -> tuple[list[list[int]], torch.Tensor]:
        """Draft a segment at random places of the tree; return the rows' texts and their logits."""
        pipeline, rng = self.pipeline, self.rng
        count = int(rng.integers(1, most))
        slots = np.arange(pipeline.context, pipeline.cached + count)
        places = [[-1, *slots[: len(self.tail) + row]][-self.reach :] for row in range(count)]
        parents = [int(rng.choice(each)) if len(each) > 1 else -1 for each in places]
        tokens = rng.integers(0, self.vocab, count).tolist()
        logits = pipeline.draft(tokens, parents)
        self.tail += tokens
        return [self.text(slot) for slot in slots[-count:]], logits

    def text(self, slot: int) -> list[int]:
        path = self.pipeline.lineage(slot)
        return [*self.context, *(self.tail[each - self.pipeline.context] for each in path)]

    def prune(self) -> None:
        """Accept a random path of the tree, and keep the subtree of one child of its end."""
        pipeline, offset = self.pipeline, self.pipeline.context
        slots = range(offset, pipeline.cached)
        path = pipeline.lineage(int(self.rng.choice(slots)))
        accepted = path[: int(self.rng.integers(1, len(path) + 1))]
        children = [slot for slot in slots if pipeline.parents[slot - offset] == accepted[-1]]
        kept = [slot for slot in slots if children and children[0] in pipeline.lineage(slot)]
        self.context += [self.tail[slot - offset] for slot in accepted]
        self.tail = [self.tail[slot - offset] for slot in kept]
        pipeline.prune(accepted, kept)
