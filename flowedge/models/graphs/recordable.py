"""Whether a GPU records the small forwards of a model, decided before anything of the model is loaded."""

from __future__ import annotations

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import fixed_rope_length
from flowedge.models.files.families import layer_prefix

EXPERTS = ".experts."  # in the names of the tensors of a mixture of experts


def is_recordable(checkpoint: Checkpoint, start: int, stop: int) -> bool:
    """Return whether layers [start, stop) compute small forwards without waiting for the host."""
    if fixed_rope_length(checkpoint.config) is not None:
        return False
    prefixes = tuple(layer_prefix(index) for index in range(start, stop))
    return not any(name.startswith(prefixes) and EXPERTS in name for name in checkpoint.names)
