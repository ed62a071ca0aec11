"""A whole causal language model: all of its layers and its LM head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from flowedge.core.arrays import NO_TOKEN, IntArray, Payload
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.copies import to_host
from flowedge.models.lm_head import LMHead


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A model that predicts tokens for a target model with the same tokenizer.

    Attributes:
        block: all layers, with embedding and final norm; vocab_size: the target's number of tokens.
    """

    block: LayerBlock
    head: LMHead
    vocab_size: int
    fingerprint: str

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        quant: str = "none",
    ) -> LanguageModel:
        """Read all weights of a model to a device, its layers in the format `quant`.

        Raises:
            CheckpointError: when they cannot be read.
        """
        layers = int(checkpoint.config.num_hidden_layers)
        block = LayerBlock.load(checkpoint, 0, layers, quant=quant, dtype=dtype, device=device)
        tied = checkpoint.head_name == checkpoint.embedding_name
        head = LMHead.load(
            checkpoint, dtype=dtype, device=device, weight=block.embedding_weight if tied else None
        )
        return cls(block, head, vocab_size, checkpoint.fingerprint)

    @staticmethod
    def required_bytes(checkpoint: Checkpoint, dtype: torch.dtype, quant: str = "none") -> int:
        """Return the bytes that the weights take, the layers in the format `quant`; no tensor is read."""
        config = checkpoint.config
        tied = checkpoint.head_name == checkpoint.embedding_name
        head = 0 if tied else config.vocab_size * config.hidden_size * dtype.itemsize
        layers = int(config.num_hidden_layers)
        return LayerBlock.required_bytes(checkpoint, 0, layers, quant=quant, dtype=dtype) + int(head)

    @property
    def weight_bytes(self) -> int:
        tied = self.head.weight is self.block.embedding_weight
        return self.block.weight_bytes + (0 if tied else self.head.weight_bytes)

    def known(self, tokens: Payload) -> Payload:
        """Return the target's tokens [n] as the model reads them.

        An id beyond the model's vocabulary can only be padding of the target's, and is read as token 0.
        """
        return np.where(tokens < self.block.vocab_size, tokens, 0)

    @torch.inference_mode()
    def predict(self, hidden: torch.Tensor, positions: IntArray) -> Payload:  # noqa: ARG002
        """Return the likeliest next token, among the target's tokens, after each row: int32 [n].

        A row whose logits are not finite has NO_TOKEN.

        hidden: final hidden states [n, hidden]; positions: int64 [n], for a ranking that depends on the place
        of the token, positions + 1, such as one by the noise of its draw.
        """
        predicted: Payload
        logits = self.logits(hidden)
        best = logits.argmax(dim=-1, keepdim=True)
        # NaN and infinity are the largest for argmax, so the best logit tells of all logits.
        known = torch.where(logits.gather(-1, best).isfinite(), best, NO_TOKEN)
        (predicted,) = to_host(known[:, 0].to(torch.int32))
        return predicted

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the float32 logits [n, vocab_size] of final hidden states [n, hidden]."""
        return self.head.logits(hidden)[:, : self.vocab_size]
