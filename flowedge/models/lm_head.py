"""The token embedding, and the LM head that turns final hidden states into logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn.functional import linear

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.models.architecture import LM_HEAD_BIAS, Architecture
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.exact.self_test_products import product_counts
from flowedge.models.kernels.linear import KernelLinear, fits_kernels, float_linear
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.row_counts import ANY_COUNT, RowCounts
from flowedge.models.token_table import PackedTable, TableEmbedding, TokenTable, load_table

_MOST_ROWS = 64  # of an exact product; more rows are computed in parts


@dataclass(eq=False)
class LMHead:
    """The output projection, and the scaling of its logits."""

    weight: TokenTable  # [vocab, hidden]
    tensor_name: str
    divisor: float = 1.0  # of the logits
    softcap: float | None = None  # tanh keeps the divided logits within it
    row_counts: RowCounts = ANY_COUNT  # numbers of rows that `logits` computes at once
    exact: bool = False  # whether `logits` gives a row the same bits whatever the number of rows

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        exact: bool = False,
        quant: str | None = None,
        quant_cache: QuantCache | None = None,
    ) -> LMHead:
        """Read the head's tensor, which is the embedding's when the two are tied.

        Args:
            exact: whether `logits` gives a row the same bits whatever the number of rows.
            quant: as in `load_table`.
        """
        name = checkpoint.head_name
        if checkpoint.has(LM_HEAD_BIAS):
            raise CheckpointError(
                f"{checkpoint.place}: tensor {LM_HEAD_BIAS} is a bias that "
                f"transformers' {checkpoint.family.prefix} models do not have"
            )
        head = cls(
            load_table(checkpoint, name, dtype, device, quant, quant_cache),
            name,
            divisor=checkpoint.architecture.logits_divisor,
            softcap=checkpoint.architecture.logits_softcap,
        )
        if exact:
            head.find_row_counts()
        return head

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [n, vocab] in float32 of final hidden rows [n, hidden]."""
        kernel = self._kernel
        if kernel is None:
            return self.row_counts.apply(self.differentiable_logits, hidden)
        return self.scaled(kernel.product(hidden.to(device="cpu", dtype=self.weight.dtype)))

    def differentiable_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The result of `logits`, with gradients for `hidden` where `hidden` requires them."""
        rows = hidden.to(device=self.parameter.device, dtype=self.parameter.dtype)
        return self.scaled(linear(rows, self.parameter).float())

    def scaled(self, logits: torch.Tensor) -> torch.Tensor:
        """Return products [n, vocab] with the weight as logits."""
        if self.divisor != 1:
            logits = logits / self.divisor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def find_row_counts(self) -> None:
        """Set the numbers of rows that `logits` computes at once so that a row's bits do not depend on them.

        Raises:
            BadRequestError: when the device has no such numbers for the head's product.
        """
        if self._kernel is not None:
            self.exact = True
            return
        linear_head = self.linear()
        counts = product_counts([linear_head], self.weight.dtype, self.weight.device, _MOST_ROWS)
        if counts is None:
            raise BadRequestError(
                f"the bits of the LM head's product on {self.weight.device} depend on the number of rows, so "
                "decoding cannot be exact; choose another dtype, or leave out the exact option"
            )
        self.row_counts, self.exact = counts, True

    @property
    def rows_are_apart(self) -> bool:
        """Whether `logits` gives a row the same bits whatever the number of rows, without further choices."""
        return self._kernel is not None

    @cached_property
    def _kernel(self) -> KernelLinear | None:
        """The head's product by the kernels, which is exact; None where they do not run."""
        if isinstance(self.weight, PackedTable):
            return self.weight.linear
        if missing_reason() or not fits_kernels(self.weight):
            return None
        return float_linear(self.linear())

    def linear(self) -> nn.Linear:
        """Return the product of a head that is not packed as a linear layer with the head's memory."""
        own = nn.Linear(self.hidden_size, self.vocab_size, bias=False, device="meta")
        own.weight = self.parameter
        return own

    @property
    def parameter(self) -> nn.Parameter:
        """The weight of a head that is not packed."""
        assert isinstance(self.weight, nn.Parameter), "a packed table is no parameter"
        return self.weight

    @property
    def vocab_size(self) -> int:
        return int(self.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self.weight.shape[1])

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def weight_bytes(self) -> int:
        return int(self.weight.nbytes)


def load_embedding(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    quant: str | None = None,
    quant_cache: QuantCache | None = None,
) -> nn.Embedding:
    """Load the frozen token embedding, which is the LM head's weight where they are tied.

    quant: as in `load_table`.
    """
    config = checkpoint.config
    weight = load_table(checkpoint, checkpoint.embedding_name, dtype, device, quant, quant_cache)
    if isinstance(weight, PackedTable):
        return TableEmbedding(weight).eval()
    # Given a weight, torch does not initialise one: without memory, that would import torch's compiler.
    embedding = nn.Embedding(config.vocab_size, config.hidden_size, _weight=weight, _freeze=True)
    embedding.weight = weight
    return embedding


def embedding_multiplier(architecture: Architecture, dtype: torch.dtype) -> float:
    """The factor on embedded tokens, rounded to their dtype where the model was trained so."""
    multiplier = architecture.embedding_multiplier
    return float(torch.tensor(multiplier).to(dtype)) if architecture.embedding_rounded else multiplier


def embed(embedding: nn.Embedding, multiplier: float, tokens: torch.Tensor) -> torch.Tensor:
    """Return the rows [n, hidden] of token ids [n]: their embeddings, multiplied."""
    embedded: torch.Tensor = embedding(tokens)
    return embedded if multiplier == 1 else embedded * multiplier
