"""What drafters take in memory, from their configs and the headers of their files; no tensor is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from flowedge.core.errors import CheckpointError
from flowedge.drafting.choice import NGRAM, RECALL
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.heads.head_files import (
    BIN_NAME,
    EMBEDDING_KEY,
    SAFETENSORS_NAME,
    llama_config,
    read_config,
)
from flowedge.drafting.loading import drafter_directory, kind_of
from flowedge.drafting.ngram import NGramDrafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.whole_model import MiddleModel

STORED_BYTES = 2  # of a parameter in a pickle, which is not opened: most are float16


@dataclass(frozen=True)
class DrafterSize:
    """Bytes of a drafter's weights, and of its cache for one more token."""

    weights: int = 0
    row: int = 0

    def __add__(self, other: DrafterSize) -> DrafterSize:
        return DrafterSize(self.weights + other.weights, self.row + other.row)


def drafter_size(names: Sequence[str], target: Checkpoint, dtype: torch.dtype) -> DrafterSize:
    """Of all drafters of these names (see drafter_names) together, with weights and caches in `dtype`.

    BadRequestError for a name that means nothing here, CheckpointError for files that cannot be read.
    """
    recalls = RECALL in names
    sizes = (_size(source, target, dtype, recalls) for source in names if source != RECALL)
    return sum(sizes, DrafterSize())


def _size(source: str, target: Checkpoint, dtype: torch.dtype, recalls: bool) -> DrafterSize:
    if source == NGRAM:
        drafter = NGramDrafter()
        return DrafterSize(row=drafter.session_bytes(1) - drafter.session_bytes(0))
    directory = drafter_directory(source)
    kind = kind_of(directory)
    if kind == "lm":
        own = Checkpoint(directory)
        row = SessionCache.bytes_per_row(own.config, int(own.config.num_hidden_layers), dtype)
        row += int(own.config.hidden_size) * dtype.itemsize
        return DrafterSize(MiddleModel.required_bytes(own, dtype), row)
    config = llama_config(read_config(directory / "config.json"), directory, "draft")
    parameters, has_embedding = _head_parameters(directory)
    shared = target.head_name == target.embedding_name
    if not has_embedding and not shared:
        parameters += int(target.config.vocab_size * target.config.hidden_size)
    features = HeadDrafter.feature_bytes(int(config.hidden_size), dtype, recalls and kind == "eagle")
    row = SessionCache.bytes_per_row(config, 1, dtype) + features
    return DrafterSize(parameters * dtype.itemsize, row)


def _head_parameters(directory: Path) -> tuple[int, bool]:
    """Parameters of a draft head, its tables of tokens left out; whether an embedding is among them."""
    file, pickled = directory / SAFETENSORS_NAME, directory / BIN_NAME
    if not file.exists() and pickled.exists():
        return pickled.stat().st_size // STORED_BYTES, True
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            shapes = {name: found.get_shape() for name, found in slices.items() if "F" in found.get_dtype()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read the draft head's weights in {directory}: {error}") from error
    return sum(math.prod(shape) for shape in shapes.values()), EMBEDDING_KEY in shapes
