"""What embeds tokens, and the LM head that turns final hidden states into logits.

Tokens are embedded as hidden rows, and in some models as rows that each layer is given beside the hidden rows
(Gemma 4's per-layer embeddings). The first block makes these for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn
from torch.nn.functional import linear

from flowedge.core.arrays import IntArray
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.models.architecture import (
    LAYER_EMBEDDING,
    LAYER_INPUT_NORM,
    LAYER_PROJECTION,
    LM_HEAD_BIAS,
    Architecture,
)
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.exact.self_test_products import product_counts
from flowedge.models.host.copies import HostArray, to_device, to_host
from flowedge.models.kernels.layer import KernelNorm
from flowedge.models.kernels.linear import KernelLinear, fits_kernels, float_linear
from flowedge.models.loading import load_parameter
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.row_counts import ANY_COUNT, RowCounts
from flowedge.models.row_functions import Call, RmsNorm, norm_call
from flowedge.models.token_table import PackedTable, TableEmbedding, TokenTable, load_table, table_bytes

_MOST_ROWS = 64  # of an exact product; more rows are computed in parts
_SHARE = 2.0**-0.5  # of the sum of two rows of equal size


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

    def differentiable_logits(self, hidden: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """The result of `logits`, with gradients for `hidden` where `hidden` requires them.

        weight: [tokens, hidden], rows of `parameter` for the tokens that logits are wanted of; None for all.
        """
        weight = self.parameter if weight is None else weight
        return self.scaled(linear(hidden.to(device=weight.device, dtype=weight.dtype), weight).float())

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
    name: str = "",
) -> nn.Embedding:
    """Load the frozen token embedding, which is the LM head's weight where they are tied.

    Args:
        quant: as in `load_table`.
        name: the tensor of another embedding.
    """
    weight = load_table(checkpoint, name or checkpoint.embedding_name, dtype, device, quant, quant_cache)
    if isinstance(weight, PackedTable):
        return TableEmbedding(weight).eval()
    # Given a weight, torch does not initialise one: without memory, that would import torch's compiler.
    embedding = nn.Embedding(len(weight), weight.shape[1], _weight=weight, _freeze=True)
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


class LayerInputs(nn.Module):
    """Makes the rows of all layers.

    The table of tokens stays in the memory of the host, of which a forward reads a row for each token.

    Attributes:
        table: the embedding [tokens, layers * layer_input].
        projection: of embedded tokens, to the sizes of the table's rows; never quantised.
        norm: of each layer's part of the projection.
    """

    def __init__(self, architecture: Architecture, table: nn.Embedding, dtype: torch.dtype) -> None:
        """Make the module, of which only the table is loaded."""
        super().__init__()
        width, layers = architecture.layer_input, len(architecture.key_layers)
        self.table = table
        with torch.device("meta"):
            self.projection = nn.Linear(architecture.hidden, layers * width, bias=False, dtype=dtype)
            self.norm = RmsNorm(width, architecture.norm_eps, in_float=architecture.norm_in_float)
        self._width, self._share = width, architecture.hidden**-0.5
        self._multiplier = float(torch.tensor(width**0.5).to(dtype))
        self._kernel: tuple[KernelLinear, KernelNorm] | None = None
        self._call: Call | None = None

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        quant: str | None,
        quant_cache: QuantCache | None = None,
    ) -> LayerInputs:
        """Read the weights of a checkpoint; quant: as in `load_table`, of the table.

        Raises:
            CheckpointError: when they cannot be read.
        """
        table = load_embedding(
            checkpoint, dtype=dtype, quant=quant, quant_cache=quant_cache, name=LAYER_EMBEDDING
        )
        own = cls(checkpoint.architecture, table, dtype)
        for module, name in ((own.projection, LAYER_PROJECTION), (own.norm, LAYER_INPUT_NORM)):
            module.weight = load_parameter(checkpoint, name, module.weight.shape, dtype, device)
        own.prepare()
        return own.requires_grad_(False).eval()

    def prepare(self) -> None:
        """Choose what computes with the loaded weights: the kernels, which keep rows apart, or torch."""
        if not missing_reason() and fits_kernels(self.projection.weight):
            self._kernel = float_linear(self.projection), KernelNorm(self.norm)
        self._call = norm_call(self.norm)

    def forward(self, tokens: IntArray, embedded: torch.Tensor) -> torch.Tensor:
        """Return [n, layers * layer_input] for token ids [n] and their embedded rows [n, hidden]."""
        count, dtype, device = len(tokens), embedded.dtype, embedded.device
        if self._kernel is not None:
            project, norm = self._kernel
            rows = project.product(embedded).to(dtype).mul_(self._share).view(-1, self._width)
            norm(rows)
        else:
            assert self._call is not None, "prepare"
            projected = nn.functional.linear(embedded, self.projection.weight)
            rows = self._call(projected.mul_(self._share).view(-1, self._width))
        (of_tokens,) = to_device(device, self._host_rows(tokens))
        own = (of_tokens * self._multiplier).view(-1, self._width)
        return rows.add_(own).mul_(_SHARE).view(count, -1)

    def _host_rows(self, tokens: IntArray) -> HostArray:
        """The rows [n, layers * layer_input] of the table."""
        (rows,) = to_host(self.table(torch.from_numpy(tokens)))
        return rows


def layer_input_bytes(checkpoint: Checkpoint, dtype: torch.dtype, quant: str | None) -> int:
    """The bytes of what `LayerInputs.load` reads, 0 where layers are given no rows; no tensor is read."""
    architecture = checkpoint.architecture
    if not architecture.layer_input:
        return 0
    width, layers = architecture.layer_input, len(architecture.key_layers)
    own = (architecture.hidden * layers * width + width) * dtype.itemsize
    return own + table_bytes(checkpoint, LAYER_EMBEDDING, dtype, "cpu", quant)
