"""The real pair of target and drafter that supplies the tokens, loaded once a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import Target, load_drafter
from flowedge.errors import BadRequestError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint import Checkpoint
from flowedge.models.features import max_positions
from flowedge.models.head import LMHead
from flowedge.models.tokenizer import encode_chat, eos_token_ids, load_tokenizer
from flowedge.runtime.in_process import load_blocks


@dataclass
class Pair:
    """A target and its drafter, in fp32; `model` and `drafter_name` are what they were loaded by."""

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter
    tokenizer: Any
    eos: frozenset[int]
    model: str
    drafter_name: str
    _blocks: dict[tuple[int, ...], list[LayerBlock]] = field(default_factory=dict)

    @classmethod
    def load(cls, model: str, drafter: str) -> Pair:
        """Reads both, as --model and --drafter name them; CheckpointError or BadRequestError if it cannot."""
        checkpoint = Checkpoint.open(model)
        head = LMHead.load(checkpoint)
        tokenizer = load_tokenizer(checkpoint)
        eos = eos_token_ids(checkpoint, tokenizer)
        loaded = load_drafter(drafter, Target(checkpoint, head, tokenizer, torch.float32))
        if loaded is None:
            raise BadRequestError(f"a benchmark needs a drafter, and --drafter is {drafter}")
        return cls(checkpoint, head, loaded, tokenizer, eos, model, drafter)

    @property
    def drafter_fingerprint(self) -> str:
        return self.drafter.fingerprint

    @property
    def max_positions(self) -> int:
        return max_positions(self.checkpoint.config)

    def encode(self, message: str) -> tuple[int, ...]:
        """The tokens of a user message, ready for the answer."""
        return tuple(encode_chat(self.tokenizer, message))

    def blocks(self, split: tuple[int, ...]) -> list[LayerBlock]:
        """The target's layers in these portions, loaded once."""
        if split not in self._blocks:
            self._blocks[split] = load_blocks(self.checkpoint, split)
        return self._blocks[split]
