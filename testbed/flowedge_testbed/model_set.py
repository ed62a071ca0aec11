"""The real pair of target and drafter that supplies the tokens, loaded once a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import drafter_label
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.middles import check_middle
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.config_support import max_positions
from flowedge.models.checkpoint.tokenizer import encode_chat, eos_token_ids, load_tokenizer
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.whole_model import MiddleModel
from flowedge.simulate.in_process import load_blocks


@dataclass
class ModelSet:
    """A target, its drafter and its middle models, in fp32.

    Attributes:
        model, drafter_names: what they were loaded by; middles: of a hierarchy, the smallest first.
    """

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter
    tokenizer: Any
    eos: frozenset[int]
    model: str
    drafter_names: tuple[str, ...]
    middles: tuple[MiddleModel, ...] = ()
    _blocks: dict[tuple[int, ...], list[LayerBlock]] = field(default_factory=dict)

    @classmethod
    def load(cls, model: str, drafter: tuple[str, ...], middles: Sequence[str] = ()) -> ModelSet:
        """Reads all, as --model, --drafter and --middle name them; CheckpointError or BadRequestError."""
        checkpoint = Checkpoint.open(model)
        head = LMHead.load(checkpoint)
        tokenizer = load_tokenizer(checkpoint)
        eos = eos_token_ids(checkpoint, tokenizer)
        loaded = load_drafter(drafter, TargetModel(checkpoint, head, tokenizer, torch.float32))
        if loaded is None:
            raise BadRequestError(f"a benchmark needs a drafter, and --drafter is {drafter_label(drafter)}")
        between = tuple(
            MiddleModel.load(check_middle(middle, tokenizer), head.vocab_size, torch.float32)
            for middle in middles
        )
        return cls(checkpoint, head, loaded, tokenizer, eos, model, drafter, between)

    @property
    def middle_fingerprints(self) -> list[str]:
        return [middle.fingerprint for middle in self.middles]

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
