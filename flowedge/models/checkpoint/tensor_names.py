"""Where each tensor of a family's modules is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.gguf.architectures import architecture_of, module_tensors
from flowedge.models.checkpoint.gguf.config import ARCHITECTURE_KEY
from flowedge.models.checkpoint.model_config import ModelConfig
from flowedge.models.checkpoint.stored_tensors import StoredTensor, experts_of, is_stack
from flowedge.models.checkpoint.tensor_files import TensorFiles

_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.")


def name_tensors(model: ModelConfig, files: TensorFiles, place: Path) -> dict[str, StoredTensor]:
    """Return the place of each tensor, by the name that the family's modules have for it.

    Args:
        place: the path of the model to name in errors.

    Raises:
        CheckpointError: when the tensors of a GGUF model do not fit its architecture.
    """
    architecture = model.raw.get(ARCHITECTURE_KEY)
    if architecture is not None:
        return _name_gguf_tensors(model, files, place, architecture)
    found: dict[str, StoredTensor] = {}
    for stored in files.paths:
        name = model.family.module_name(stored)
        if is_stack(name):
            found |= experts_of(name, stored, tuple(files.handle(stored).shape))
        else:
            found[name] = StoredTensor(stored)
    return found


def _name_gguf_tensors(
    model: ModelConfig, files: TensorFiles, place: Path, architecture: object
) -> dict[str, StoredTensor]:
    shapes = {stored: tuple(files.handle(stored).shape) for stored in files.paths}
    heads, kv_heads = int(model.config.num_attention_heads), int(model.config.num_key_value_heads)
    try:
        return module_tensors(architecture_of(architecture), shapes, heads, kv_heads)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}") from error


def stored_layers(names: Iterable[str]) -> frozenset[int]:
    """The indices of the decoder layers that any of the named tensors belongs to."""
    return frozenset(int(match[1]) for match in map(_LAYER.match, names) if match is not None)
