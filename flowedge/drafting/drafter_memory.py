"""The memory of drafters, from configs and headers alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowedge.drafting.block.block_head import CONFIDENCE_PREFIX, LM_HEAD_KEY, block_config
from flowedge.drafting.choice import MTP, NGRAM, RECALL, DrafterKind
from flowedge.drafting.draft_quant import copy_limit, head_quant, layer_quant, lm_quant
from flowedge.drafting.drafter_format import DEFAULT_FORMAT, DrafterFormat
from flowedge.drafting.heads.eagle3_head import MASK_STATE
from flowedge.drafting.heads.head_files import (
    BIN_NAME,
    EMBEDDING_KEY,
    IGNORED_PREFIX,
    SAFETENSORS_NAME,
    llama_config,
)
from flowedge.drafting.heads.head_settings import read_settings
from flowedge.drafting.heads.head_store import HeadSizes
from flowedge.drafting.heads.mtp_head import is_mtp_recordable, mtp_bytes
from flowedge.drafting.lm import check_can_draft
from flowedge.drafting.loading import drafter_directory, kind_of
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.models.attention.kv_store import kv_row_bytes
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.static_decoding import is_recordable
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.files.weight_file import open_weights
from flowedge.models.language_model import LanguageModel
from flowedge.models.quant.quantize import linear_bytes
from flowedge.models.token_table import table_bytes

# Of tensors of two dimensions that no product reads, and that so are never quantised.
_TABLES = (EMBEDDING_KEY, "markov_w1.weight", "_codebook", "_codebook.weight", MASK_STATE)
STORED_BYTES = 2  # of a parameter in a .bin file, which is not opened: most are float16


@dataclass(frozen=True)
class DrafterMemory:
    """The bytes of a drafter's weights, and of each row of a session's cache."""

    weights: int = 0
    row: int = 0

    def __add__(self, other: DrafterMemory) -> DrafterMemory:
        return DrafterMemory(self.weights + other.weights, self.row + other.row)


def drafter_memory(
    names: Sequence[str],
    target: Checkpoint,
    dtype: torch.dtype,
    form: DrafterFormat = DEFAULT_FORMAT,
    device: torch.device | str = "cpu",
    *,
    cuda_graphs: bool = False,
    table_quant: str | None = None,
) -> DrafterMemory:
    """The memory of all drafters of these names (see drafter_names), with weights and caches in `dtype`.

    Args:
        form: how drafters that are models are held; `device`: where.
        cuda_graphs: whether the device records small forwards as CUDA graphs, if it can.
        table_quant: of the target's layers, as in TargetModel.

    Raises:
        BadRequestError: when there is no drafter of a name.
        CheckpointError: when files cannot be read.
    """
    claim = _Claim(target, dtype, form, torch.device(device), RECALL in names, cuda_graphs, table_quant)
    return sum((claim.memory(source) for source in names if source != RECALL), DrafterMemory())


@dataclass(frozen=True)
class _Claim:
    target: Checkpoint
    dtype: torch.dtype
    form: DrafterFormat
    device: torch.device
    recalls: bool
    cuda_graphs: bool
    table_quant: str | None

    def memory(self, source: str) -> DrafterMemory:
        if source == NGRAM:
            drafter = NGramDrafter()
            return DrafterMemory(row=drafter.session_bytes(1) - drafter.session_bytes(0))
        if source == MTP:
            return self._of_mtp()
        directory = drafter_directory(source)
        kind = kind_of(directory)
        if kind == "lm":
            return self._of_lm(Checkpoint(directory))
        return self._of_head(directory, kind)

    def _of_lm(self, own: Checkpoint) -> DrafterMemory:
        check_can_draft(own)
        layers, hidden = int(own.config.num_hidden_layers), int(own.config.hidden_size)
        row = kv_row_bytes(own.architecture.cached_heads(0, layers), self.dtype)
        recorded = self.cuda_graphs and is_recordable(own, 0, layers)
        row = (row_bytes_with_scratch(row) if recorded else row) + hidden * self.dtype.itemsize
        quant = lm_quant(own, self._quant)
        weights = LanguageModel.required_bytes(own, self.dtype, quant)
        saved = LanguageModel.required_bytes(own, self.dtype) - weights
        return DrafterMemory(weights + self._copy(int(own.config.vocab_size), hidden, quant, saved), row)

    def _of_head(self, directory: Path, kind: DrafterKind) -> DrafterMemory:
        settings = read_settings(directory)
        is_block = kind == "block"
        config = block_config(settings, directory) if is_block else llama_config(settings, directory, "draft")
        parameters, weights, owned = _head_sizes(directory, self._quant, self.dtype)
        saved = parameters * self.dtype.itemsize - weights
        if EMBEDDING_KEY not in owned:
            weights += self._embedding
        if LM_HEAD_KEY not in owned:
            weights += self._copy_of_target(self._quant, saved)
        recorded = fixed_rope_length(config) is None and not is_block
        layers = config.num_hidden_layers if is_block else 1
        return DrafterMemory(
            weights, self._head_row(config, self.recalls and kind == "eagle", recorded, layers)
        )

    def _of_mtp(self) -> DrafterMemory:
        target, quant = self.target, lm_quant(self.target, self._quant)
        plain, weights = (mtp_bytes(target, each, self.dtype, self.device) for each in ("none", quant))
        weights += self._embedding + self._copy_of_target(quant, plain - weights)
        return DrafterMemory(weights, self._head_row(target.config, False, is_mtp_recordable(target)))

    @property
    def _embedding(self) -> int:
        """The bytes of the target's embedding beside its LM head; 0 where the two are one tensor."""
        target = self.target
        if target.head_name == target.embedding_name:
            return 0
        return table_bytes(target, target.embedding_name, self.dtype, self.device, self.table_quant)

    def _copy_of_target(self, quant: str, saved: int) -> int:
        config = self.target.config
        return self._copy(int(config.vocab_size), int(config.hidden_size), quant, saved)

    def _head_row(self, config: Any, recalls: bool, recordable: bool, layers: int = 1) -> int:
        """The bytes of a row of a head with this config."""
        row = HeadSizes.of(config, self.dtype, torch.device("cpu"), recalls, layers).row_bytes
        return row_bytes_with_scratch(row) if self.cuda_graphs and recordable else row

    @property
    def _quant(self) -> str:
        return layer_quant(self.form, self.dtype, self.device)

    def _copy(self, vocab: int, hidden: int, quant: str, saved: int) -> int:
        """The bytes of the LM head's copy. Before enough is learned, a whole vocabulary may be copied."""
        wanted = self.form.tokens(int(self.target.config.vocab_size), self.device.type)
        return max(self._copied(rows, vocab, hidden, quant, saved) for rows in (min(wanted, vocab), vocab))

    def _copied(self, rows: int, vocab: int, hidden: int, quant: str, saved: int) -> int:
        form = head_quant(quant, rows, hidden, self.dtype, copy_limit(self.form, saved))
        return 0 if rows == vocab and form == "none" else linear_bytes(rows, hidden, form, self.dtype)


def _head_sizes(directory: Path, quant: str, dtype: torch.dtype) -> tuple[int, int, Collection[str]]:
    """The parameters of a draft head, their bytes in `quant`, and the names of its tensors."""
    file, pickled = directory / SAFETENSORS_NAME, directory / BIN_NAME
    if not file.exists() and pickled.exists():
        parameters = pickled.stat().st_size // STORED_BYTES
        return parameters, parameters * dtype.itemsize, {EMBEDDING_KEY}
    weights = open_weights(file)
    shapes = {
        name: weight.shape
        for name, weight in weights.items()
        if weight.dtype.is_floating_point and not name.startswith((IGNORED_PREFIX, CONFIDENCE_PREFIX))
    }
    held = sum(
        linear_bytes(*shape, quant, dtype)
        if len(shape) == 2 and not name.endswith(_TABLES)
        else math.prod(shape) * dtype.itemsize
        for name, shape in shapes.items()
    )
    return sum(map(math.prod, shapes.values())), held, shapes.keys()
