"""A whole small language model between the drafter and the target: it says what it would go on with."""

from __future__ import annotations

import numpy as np
import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead


class MiddleModel:
    """All layers of a causal language model with the target's tokenizer, and its LM head."""

    def __init__(self, block: LayerBlock, head: LMHead, vocab_size: int, fingerprint: str) -> None:
        """block: all layers, with embedding and final norm; vocab_size: the target's number of tokens."""
        self.block = block
        self.fingerprint = fingerprint
        self.vocab_size = vocab_size
        self._head = head

    @classmethod
    def load(cls, checkpoint: Checkpoint, vocab_size: int, dtype: torch.dtype) -> MiddleModel:
        """Reads all of it. Raises CheckpointError."""
        block = LayerBlock.load(checkpoint, 0, checkpoint.config.num_hidden_layers, dtype=dtype)
        head = LMHead.load(checkpoint, dtype=dtype)
        if checkpoint.head_name == checkpoint.embedding_name and block.embedding_weight is not None:
            head.weight = block.embedding_weight  # the copy is freed
        return cls(block, head, vocab_size, checkpoint.fingerprint)

    @staticmethod
    def required_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
        """The bytes that it takes."""
        config = checkpoint.config
        tied = checkpoint.head_name == checkpoint.embedding_name
        head = 0 if tied else config.vocab_size * config.hidden_size * dtype.itemsize
        return LayerBlock.required_bytes(checkpoint, 0, config.num_hidden_layers, dtype=dtype) + int(head)

    @property
    def weight_bytes(self) -> int:
        tied = self._head.weight is self.block.embedding_weight
        return self.block.weight_bytes + (0 if tied else self._head.weight_bytes)

    def known(self, tokens: Payload) -> Payload:
        """The tokens [n] as it reads them: what it lacks can only be padding of the target's vocabulary."""
        return np.where(tokens < self.block.vocab_size, tokens, 0)

    @torch.inference_mode()
    def predict(self, hidden: torch.Tensor, positions: IntArray) -> Payload:  # noqa: ARG002
        """The token it would go on with after each row of final hidden states [n, hidden]: int32 [n].

        That is the likeliest token that the target has. A ranking that looks at more than probability, such
        as one by the noise of the place, positions + 1, has its place here.
        """
        logits = self._head.logits(hidden)[:, : self.vocab_size]
        predicted: Payload = logits.argmax(dim=-1).to(torch.int32).cpu().numpy()
        return predicted
