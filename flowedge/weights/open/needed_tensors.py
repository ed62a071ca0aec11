"""Which stored tensors of a checkpoint a device reads."""

from __future__ import annotations

from collections.abc import Iterable

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import FINAL_NORM, layer_prefix


def block_tensors(checkpoint: Checkpoint, start: int, stop: int) -> list[str]:
    """The stored names of the tensors of layers [start, stop).

    The first layer includes the embedding, the last layer the final norm.
    """
    prefixes = tuple(layer_prefix(index) for index in range(start, stop))
    names = [name for name in checkpoint.names if name.startswith(prefixes)]
    if start == 0:
        names.append(checkpoint.embedding_name)
    if stop == checkpoint.config.num_hidden_layers:
        names.append(FINAL_NORM)
    return _stored(checkpoint, names)


def head_tensors(checkpoint: Checkpoint) -> list[str]:
    """The stored names of the LM head and the embedding, which a draft node reads."""
    return _stored(checkpoint, [checkpoint.head_name, checkpoint.embedding_name])


def whole_tensors(checkpoint: Checkpoint) -> list[str]:
    """The stored names of all tensors of a language model."""
    layers = block_tensors(checkpoint, 0, checkpoint.config.num_hidden_layers)
    return sorted({*layers, *head_tensors(checkpoint)})


def _stored(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    # Several names may belong to one stored tensor. The loader reports missing ones.
    return sorted({checkpoint.source(name)[1].name for name in names if checkpoint.has(name)})
