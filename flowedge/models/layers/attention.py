"""The attention functions that transformers' layers call; neither copies the session's keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.dense.attention_functions import ATTENTION_FUNCTIONS
from flowedge.models.lean.masked_attention import attend_masked

MASKED = "flowedge"  # torch's own kernels, with a mask
ORDERED = "flowedge-ordered"  # the keys of each row in the order of their positions
# Arguments of transformers' layers that change nothing, since the mask holds the window and the positions.
_WITHOUT_EFFECT = frozenset({"sliding_window", "position_ids", "use_cache"})


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with a mask over views of the session's cache.

    Args:
        query: [1, heads, rows, head_size].
        key, value: [1, kv_heads, context, head_size], views of any stride.
        attention_mask: additive, [1, 1, rows, context], of the query's dtype; or the SessionMasks of rows of
            several sessions, whose caches have the keys and values.
        softcap: the bound that tanh keeps the scores within.

    Returns:
        [1, rows, heads, head_size], and None for the attention weights.
    """
    _check_arguments(dropout, others)
    if isinstance(attention_mask, list):

        def attend_own(own: torch.Tensor, mask: torch.Tensor, cache: Any) -> torch.Tensor:
            keys, values = cache.views(module.layer_idx)
            return attend_masked(own, keys, values, mask, scaling, softcap)

        return _by_session(attend_own, query, attention_mask), None
    output = attend_masked(query, key, value, attention_mask, scaling, softcap)
    return output.transpose(1, 2), None


def attend_ordered(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,  # noqa: ARG001
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention whose result for a row depends on the row's own path alone, bit for bit.

    Args:
        query: [1, heads, rows, head_size].
        key, value: [1, kv_heads, rows, head_size] of the new rows, which are cached already.
        attention_mask: the OrderedReading of the layer, and the store that it reads; or the SessionMasks of
            rows of several sessions.

    Returns:
        [1, rows, heads, head_size], and None for the attention weights.
    """
    _check_arguments(dropout, others)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling

    def attend_own(own: torch.Tensor, mask: Any, _cache: object = None) -> torch.Tensor:
        reading, store = mask
        output: torch.Tensor = reading.attend(own, store, module.layer_idx, key.shape[1], scale, softcap)
        return output

    if isinstance(attention_mask, list):
        return _by_session(attend_own, query, attention_mask), None
    return attend_own(query, attention_mask).transpose(1, 2), None


def _by_session(
    function: Callable[[torch.Tensor, Any, Any], torch.Tensor], query: torch.Tensor, masks: list[Any]
) -> torch.Tensor:
    """The attention [1, rows, heads, head_size] of rows of several sessions, each over its own cache."""
    queries = query.split_with_sizes([rows for rows, *_ in masks], 2)
    parts = [function(own, *read) for own, (_, *read) in zip(queries, masks, strict=True)]
    return torch.cat([part.transpose(1, 2) for part in parts], 1)


def register_in_transformers() -> None:
    """Have transformers' own layers find the attention functions by their names."""
    from transformers import AttentionInterface  # noqa: PLC0415 (its import takes seconds and 140 MiB)

    for name, function in ATTENTION_FUNCTIONS.items():
        AttentionInterface.register(name, function)


def _check_arguments(dropout: float, others: dict[str, Any]) -> None:
    """Raise CheckpointError for an argument that would change the result."""
    unsupported = {name for name, value in others.items() if value is not None} - _WITHOUT_EFFECT
    if unsupported or dropout:
        names = ", ".join(sorted(unsupported | ({"dropout"} if dropout else set())))
        raise CheckpointError(f"the model's attention has arguments that are not supported: {names}")


# cuDNN's attention, which torch prefers on some GPUs, is compiled anew for every number of columns.
torch.backends.cuda.enable_cudnn_sdp(False)
# NVIDIA's containers set a variable by which products of float32 are rounded to 11 bits. The angles of
# positions above 2,048, and the self-tests of exact blocks, need float32.
torch.set_float32_matmul_precision("highest")
ATTENTION_FUNCTIONS[MASKED] = attend
ATTENTION_FUNCTIONS[ORDERED] = attend_ordered
