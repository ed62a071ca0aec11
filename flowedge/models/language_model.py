"""A causal language model, whole or a part of its layers, that predicts another model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A model that predicts tokens for a target model with the same tokenizer, or some of its layers.

    Attributes:
        block: the layers; all of them, with embedding and final norm, of a whole model.
        head: the LM head; None of a part without the last layer, which predicts nothing.
        vocab_size: the target's number of tokens.
        checkpoint: where the weights are from, for `parts`.
    """

    block: LayerBlock
    head: LMHead | None
    vocab_size: int
    fingerprint: str
    checkpoint: Checkpoint | None = None

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        quant: str = "none",
        layers: tuple[int, int] | None = None,
    ) -> LanguageModel:
        """Read the weights of a model to a device, its layers in the format `quant`.

        layers: the part [start, stop) that is read; the whole model if not given.

        Raises:
            CheckpointError: when they cannot be read.
        """
        start, stop = layers or (0, int(checkpoint.config.num_hidden_layers))
        block = LayerBlock.load(
            checkpoint, start, stop, quant=quant, dtype=dtype, device=device, packs_embedding=False
        )
        head = None
        if block.is_last:
            head = LMHead.load(checkpoint, dtype=dtype, device=device)
        return cls(block, head, vocab_size, checkpoint.fingerprint, checkpoint)

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[LanguageModel]:
        """Return a whole model in parts of the layers [start, stop), which are read once more.

        Raises:
            CheckpointError: when they cannot be read.
        """
        if len(ranges) == 1:
            return [self]
        if self.checkpoint is None:
            raise ValueError("it is not known where the weights of this model are from")
        block = self.block
        return [
            LanguageModel.load(self.checkpoint, self.vocab_size, block.dtype, block.device, layers=part)
            for part in ranges
        ]

    @staticmethod
    def required_bytes(
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        quant: str = "none",
        layers: tuple[int, int] | None = None,
    ) -> int:
        """Return the bytes that the weights take; no tensor is read. Arguments are as for `load`."""
        config = checkpoint.config
        start, stop = layers or (0, int(config.num_hidden_layers))
        own_head = stop == int(config.num_hidden_layers) and not _shares_embedding(checkpoint, start)
        head = config.vocab_size * config.hidden_size * dtype.itemsize if own_head else 0
        block = LayerBlock.required_bytes(
            checkpoint, start, stop, quant=quant, dtype=dtype, packs_embedding=False
        )
        return block + int(head)

    @property
    def lm_head(self) -> LMHead:
        """The LM head. Raises ValueError in a part that has none."""
        if self.head is None:
            raise ValueError(f"layers {self.block.start} to {self.block.stop - 1} have no LM head")
        return self.head

    @property
    def weight_bytes(self) -> int:
        tied = self.head is None or self.head.weight is self.block.embedding_weight
        return self.block.weight_bytes + (0 if tied else self.lm_head.weight_bytes)

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
        return self.lm_head.logits(hidden)[:, : self.vocab_size]


def _shares_embedding(checkpoint: Checkpoint, start: int) -> bool:
    """Return whether the LM head is the embedding that the layers from `start` on begin with."""
    return start == 0 and checkpoint.head_name == checkpoint.embedding_name
