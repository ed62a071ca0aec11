"""The real pair of target and drafter that supplies the tokens, loaded once a process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flowedge.drafting.eagle import EagleDrafter
from flowedge.drafting.eagle_head import EagleHead, load_eagle_head
from flowedge.errors import BadRequestError
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint import BUNDLED, Checkpoint
from flowedge.models.features import max_positions
from flowedge.models.head import LMHead, load_embedding
from flowedge.models.tokenizer import encode_chat, eos_token_ids, load_tokenizer
from flowedge.runtime.in_process import load_blocks


@dataclass
class Pair:
    """A target and its EAGLE head, in fp32; `model` and `drafter_name` are what they were loaded by."""

    checkpoint: Checkpoint
    head: LMHead
    drafter: EagleDrafter
    tokenizer: Any
    eos: frozenset[int]
    drafter_fingerprint: str
    model: str
    drafter_name: str
    _blocks: dict[tuple[int, ...], list[LayerBlock]] = field(default_factory=dict)

    @classmethod
    def load(cls, model: str, drafter: str) -> Pair:
        """Reads both; CheckpointError or BadRequestError for what cannot be."""
        checkpoint = Checkpoint.open(model)
        head = LMHead.load(checkpoint)
        embedding = load_embedding(checkpoint, shared_with=head)
        directory = _eagle_directory(checkpoint, model, drafter)
        eagle = load_eagle_head(directory, torch.float32)
        tokenizer = load_tokenizer(checkpoint)
        eos = eos_token_ids(checkpoint, tokenizer)
        made = EagleDrafter(eagle, head, embedding)
        return cls(checkpoint, head, made, tokenizer, eos, _fingerprint(eagle), model, drafter)

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


def _eagle_directory(checkpoint: Checkpoint, model: str, drafter: str) -> Path:
    if drafter == BUNDLED:
        if model != BUNDLED:
            raise BadRequestError("the bundled drafter serves the bundled model alone; give --drafter DIR")
        return checkpoint.directory.parent / "eagle"
    directory = Path(drafter).expanduser()
    if not directory.is_dir():
        raise BadRequestError(f"{drafter}: no such directory; --drafter is the folder of an EAGLE head")
    return directory


def _fingerprint(eagle: EagleHead) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(eagle.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
