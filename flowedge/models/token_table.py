"""The token table of a model: a row of weights for each token, which embeds it, or predicts it (LM head)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import nn

from flowedge.device.disk_cache.file_range import FileState
from flowedge.device.kernel_library import missing_reason
from flowedge.models.architecture import LAYER_EMBEDDING
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.kernels.linear import KernelLinear
from flowedge.models.loading import encoded_weight, gives_back_pages, load_parameter
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.block_repacking import is_held_as_stored, stored_bytes, stored_linear
from flowedge.models.quant.int8 import Int8
from flowedge.models.quant.quant_cache import QuantCache

PACKED = "int8"  # the format of a table that is quantised
_WITH_PACKED = ("int8", "int4")  # quantisations of layers beside which the table is quantised


class PackedTable(nn.Module):
    """A table [vocab, hidden] of integers, which the kernels multiply with, and of which rows are read.

    Attributes:
        linear: the products with all rows.
        dtype: of rows that are read.
    """

    def __init__(self, linear: KernelLinear, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = linear
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.linear.out_features, self.linear.in_features

    @property
    def device(self) -> torch.device:
        return self.linear.weight.device

    @property
    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.linear.parameters())

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return the rows [..., hidden] in `dtype` that an index selects of all tokens."""
        tokens = index if isinstance(index, torch.Tensor) else torch.arange(self.shape[0])[index]
        return self.rows(tokens)

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the rows [..., hidden] in `dtype` of token ids [...]."""
        read = self.linear.unpacked_rows(tokens.reshape(-1).to(self.device))
        return read.to(self.dtype).view(*tokens.shape, self.shape[1])

    def new_zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return zeros of a shape, for rows of the table."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


TokenTable: TypeAlias = nn.Parameter | PackedTable


class TableEmbedding(nn.Embedding):
    """The embedding of tokens by a packed table, which is its `weight`."""

    def __init__(self, table: PackedTable) -> None:
        nn.Module.__init__(self)  # without a weight of its own
        self.num_embeddings, self.embedding_dim = table.shape
        self.weight = table  # type: ignore[assignment]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the rows [..., hidden] of token ids [...]."""
        table: PackedTable = self.weight  # type: ignore[assignment]
        return table.rows(tokens)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, packed"


class _TableKey(NamedTuple):
    """What a table was read from, and as what.

    content: the tensor's digest where that is known; otherwise its file, as the file is now.
    """

    content: str | tuple[Path, FileState | None]
    tensor: str
    dtype: torch.dtype
    device: torch.device
    packing: str


_held: WeakValueDictionary[_TableKey, TokenTable] = WeakValueDictionary()
_reading: WeakValueDictionary[_TableKey, threading.Lock] = WeakValueDictionary()
_registry = threading.Lock()


def load_table(
    checkpoint: Checkpoint,
    name: str,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: str | None = None,
    quant_cache: QuantCache | None = None,
) -> TokenTable:
    """Return the tensor `name` [vocab, hidden] as a token table, of which a process holds one.

    Roles of a device share it, and so do a tied embedding and LM head: nobody may write to it. It is read
    where nobody holds it.

    Args:
        dtype: of a table that is not packed, and of the rows that are read.
        quant: the quantisation of the layers, which the table follows where the kernels run: as GGUF stores
            it, or in eight bits beside layers of eight or four. None: never.

    Raises:
        CheckpointError: when it cannot be read.
    """
    device = torch.device(device)
    packing = _packing(checkpoint, name, device, quant)
    path, _ = checkpoint.source(name)
    content = checkpoint.sha256(name) or (path, FileState.found(path))
    key = _TableKey(content, name, dtype, device, packing)
    with _registry:
        reading = _reading.setdefault(key, threading.Lock())
    with reading:  # who asks at the same time waits for the table, and takes it
        table = _held.get(key)
        if table is None:
            _held[key] = table = _read_table(checkpoint, key, quant_cache)
    return table


def _read_table(checkpoint: Checkpoint, key: _TableKey, quant_cache: QuantCache | None) -> TokenTable:
    name, dtype, device, form = key.tensor, key.dtype, key.device, key.packing
    shape = _shape(checkpoint, name)
    if not form:
        return load_parameter(checkpoint, name, shape, dtype, device)
    checkpoint.check_shape(name, shape)
    gives_back = gives_back_pages(checkpoint, device)
    if form == PACKED:
        encoded = encoded_weight(checkpoint, name, PACKED, dtype, quant_cache, gives_back=gives_back)
        table = _of_encoded(encoded, shape, dtype)
    else:
        table = PackedTable(stored_linear(checkpoint, name, _like(shape)), dtype)
    if gives_back:
        checkpoint.drop_cached_pages(name)
    return table


def _shape(checkpoint: Checkpoint, name: str) -> tuple[int, int]:
    """The shape of a table, by the config: a row for each token."""
    architecture = checkpoint.architecture
    if name == LAYER_EMBEDDING:
        return architecture.layer_vocab, architecture.layer_input * len(architecture.key_layers)
    return int(checkpoint.config.vocab_size), architecture.hidden


def as_quantised(table: nn.Parameter, quant: str) -> TokenTable:
    """Return a table that is in memory as `load_table` returns one beside layers of a quantisation."""
    if quant not in _WITH_PACKED or table.device.type != "cpu" or missing_reason():
        return table
    return _of_encoded(Int8().encode(WeightRows.of(table)), table.shape, table.dtype)


def _of_encoded(tensors: Tensors, shape: Sequence[int], dtype: torch.dtype) -> PackedTable:
    """The table of a weight that Int8 has encoded."""
    linear = Int8().build(tensors, _like(shape), dtype, torch.device("cpu"))
    assert isinstance(linear, KernelLinear), "the kernels run here"
    return PackedTable(linear, dtype)


def _like(shape: Sequence[int]) -> nn.Linear:
    return nn.Linear(shape[1], shape[0], bias=False, device="meta")


def is_packed(checkpoint: Checkpoint, name: str, device: torch.device | str, quant: str | None) -> bool:
    """Return whether `load_table` returns a packed table; no tensor is read."""
    return bool(_packing(checkpoint, name, torch.device(device), quant))


def table_bytes(
    checkpoint: Checkpoint,
    name: str,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    quant: str | None = None,
) -> int:
    """Return the bytes of what `load_table` reads with the same arguments; no tensor is read."""
    vocab, hidden = _shape(checkpoint, name)
    form = _packing(checkpoint, name, torch.device(device), quant)
    if form == PACKED:
        return Int8().weight_bytes(vocab, hidden)
    return stored_bytes(checkpoint, name) if form else vocab * hidden * dtype.itemsize


def _packing(checkpoint: Checkpoint, name: str, device: torch.device, quant: str | None) -> str:
    """Return how a table is packed: PACKED, "as stored", or "" for not at all."""
    if quant not in ("none", *_WITH_PACKED) or device.type != "cpu" or missing_reason():
        return ""
    if is_held_as_stored(checkpoint, name, device):
        return "as stored"
    # Who has quantised the layers of a checkpoint has left its table as it is.
    return PACKED if quant in _WITH_PACKED and checkpoint.quant == "none" else ""
