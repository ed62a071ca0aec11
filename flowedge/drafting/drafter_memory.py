"""The memory that drafters take, from their configs and the headers of their files alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flowedge.drafting.choice import NGRAM, RECALL
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.heads.head_files import (
    BIN_NAME,
    CONFIG_NAME,
    EMBEDDING_KEY,
    SAFETENSORS_NAME,
    llama_config,
)
from flowedge.drafting.loading import drafter_directory, kind_of
from flowedge.drafting.ngram import NGramDrafter
from flowedge.models.checkpoint.checkpoint import Checkpoint, read_json_object
from flowedge.models.checkpoint.weight_file import open_weights
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.language_model import LanguageModel

STORED_BYTES = 2  # of a parameter in a .bin file, which is not opened: most are float16


@dataclass(frozen=True)
class DrafterMemory:
    """The bytes of a drafter's weights, and of each row of a session's cache."""

    weights: int = 0
    row: int = 0

    def __add__(self, other: DrafterMemory) -> DrafterMemory:
        return DrafterMemory(self.weights + other.weights, self.row + other.row)


def drafter_memory(names: Sequence[str], target: Checkpoint, dtype: torch.dtype) -> DrafterMemory:
    """The memory of all drafters of these names (see drafter_names), with weights and caches in `dtype`.

    Raises:
        BadRequestError: when there is no drafter of a name.
        CheckpointError: when files cannot be read.
    """
    recalls = RECALL in names
    sizes = (_memory(source, target, dtype, recalls) for source in names if source != RECALL)
    return sum(sizes, DrafterMemory())


def _memory(source: str, target: Checkpoint, dtype: torch.dtype, recalls: bool) -> DrafterMemory:
    if source == NGRAM:
        drafter = NGramDrafter()
        return DrafterMemory(row=drafter.session_bytes(1) - drafter.session_bytes(0))
    directory = drafter_directory(source)
    kind = kind_of(directory)
    if kind == "lm":
        own = Checkpoint(directory)
        row = SessionCache.bytes_per_row(own.config, int(own.config.num_hidden_layers), dtype)
        row += int(own.config.hidden_size) * dtype.itemsize
        return DrafterMemory(LanguageModel.required_bytes(own, dtype), row)
    config = llama_config(read_json_object(directory / CONFIG_NAME), directory, "draft")
    parameters, has_embedding = _head_parameters(directory)
    shared = target.head_name == target.embedding_name
    if not has_embedding and not shared:
        parameters += int(target.config.vocab_size * target.config.hidden_size)
    features = HeadDrafter.feature_bytes(int(config.hidden_size), dtype, recalls and kind == "eagle")
    row = SessionCache.bytes_per_row(config, 1, dtype) + features
    return DrafterMemory(parameters * dtype.itemsize, row)


def _head_parameters(directory: Path) -> tuple[int, bool]:
    """The number of float parameters of a draft head, and whether an embedding is among them."""
    file, pickled = directory / SAFETENSORS_NAME, directory / BIN_NAME
    if not file.exists() and pickled.exists():
        return pickled.stat().st_size // STORED_BYTES, True
    weights = open_weights(file)
    sizes = [math.prod(weight.shape) for weight in weights.values() if weight.dtype.is_floating_point]
    return sum(sizes), EMBEDDING_KEY in weights
