"""Small integers that are packed in int32, and checks of the tensors that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowedge.core.errors import CheckpointError
from flowedge.models.stored_quant.integer_weight import RawTensors

WORD_BITS = 32


def unpack(packed: torch.Tensor, bits: int, nibbles: Sequence[int] | None = None) -> torch.Tensor:
    """Unpack the last axis of int32 [..., n] to uint8 [..., n * 32 / bits].

    Args:
        bits: 4 or 8.
        nibbles: the place in the word of each of its values; by default the lowest bits hold the first.
    """
    values = packed.contiguous().view(torch.uint8)  # the lowest byte of a word first
    if bits == 4:
        values = torch.stack((values & 15, values >> 4), dim=-1).flatten(-2)
    if nibbles is None:
        return values
    by_word = values.reshape(*packed.shape, len(nibbles))
    return by_word[..., list(nibbles)].flatten(-2)


def check_header(
    tensors: RawTensors, name: str, shape: Sequence[int | None], dtypes: Sequence[torch.dtype]
) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of a tensor after a check; None in `shape` is any size but 0.

    Raises:
        CheckpointError: when the tensor is missing, or its shape or dtype is another one.
    """
    found, dtype = tensors.header(name)
    fits = len(found) == len(shape) and all(
        size == wanted if wanted is not None else size > 0 for size, wanted in zip(found, shape, strict=True)
    )
    if not fits or dtype not in dtypes:
        sizes = ["any size" if size is None else size for size in shape]
        raise CheckpointError(
            f"tensor {name} is {list(found)} of {dtype}; expected {sizes} of {' or '.join(map(str, dtypes))}"
        )
    return found, dtype


def group_size(name: str, in_features: int, groups: int, announced: int, *, short_last: bool = False) -> int:
    """The weights of a row that share a scale, which `groups` and the config have to agree on.

    Args:
        announced: the config's group size; -1 for one scale a row.
        short_last: whether the last group of a row may be shorter than the others.

    Raises:
        CheckpointError: when they do not agree.
    """
    group = in_features if announced == -1 else announced
    fits = -(-in_features // group) == groups if short_last else group * groups == in_features
    if not fits:
        raise CheckpointError(
            f"{name} has {groups} scales a row for {in_features} weights, and the config says "
            f"groups of {group}"
        )
    return group


def read_order(
    name: str, tensors: RawTensors, in_features: int, group: int, *, reordered: bool
) -> torch.Tensor | None:
    """The input feature of each column when the columns of each group stand together.

    Args:
        name: a tensor with the group of each input feature, int32 [in_features], which only a weight that is
            reordered needs to have.
        reordered: whether the config says that groups are not runs of neighbouring features.

    Returns:
        int64 [in_features]; None unless `reordered`.

    Raises:
        CheckpointError: when the tensor is missing, a group has more or fewer than `group` features, or
            features have an order that the config does not tell of.
    """
    if not reordered and not tensors.has(name):
        return None
    check_header(tensors, name, (in_features,), (torch.int32, torch.int64))
    groups = tensors.raw(name).long()
    runs = torch.arange(in_features) // group
    if bool((groups == -1).all()):  # compressed-tensors: the layer was not reordered after all
        groups = runs
    if not reordered:
        if not torch.equal(groups, runs) and bool(groups.any()):
            raise CheckpointError(f"tensor {name} has an order of columns (desc_act) that the config denies")
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order], runs):
        raise CheckpointError(f"tensor {name} does not give {group} input features to every group")
    return order
