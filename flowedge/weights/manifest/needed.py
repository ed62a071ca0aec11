"""Which stored tensors a device reads of a checkpoint. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import FINAL_NORM, layer_prefix


def block_tensors(checkpoint: Checkpoint, start: int, stop: int) -> list[str]:
    """The stored names of what layers [start, stop) read: with the embedding at the first layer, and the
    final norm at the last."""
    prefixes = tuple(layer_prefix(index) for index in range(start, stop))
    names = [name for name in checkpoint.names if name.startswith(prefixes)]
    if start == 0:
        names.append(checkpoint.embedding_name)
    if stop == checkpoint.config.num_hidden_layers:
        names.append(FINAL_NORM)
    return _stored(checkpoint, names)


def head_tensors(checkpoint: Checkpoint) -> list[str]:
    """The stored names of what a draft node reads: LM head and embedding."""
    return _stored(checkpoint, [checkpoint.head_name, checkpoint.embedding_name])


def whole_tensors(checkpoint: Checkpoint) -> list[str]:
    """The stored names of what a whole language model reads."""
    layers = block_tensors(checkpoint, 0, checkpoint.config.num_hidden_layers)
    return sorted({*layers, *head_tensors(checkpoint)})


def _stored(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    """Several names may be of one stored tensor; what is missing is for the loader to name."""
    return sorted({checkpoint.source(name)[1].name for name in names if checkpoint.has(name)})
