"""Whether a block computes rows whose bits depend on their own paths alone, and with which sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flowedge.models.copies import to_host
from flowedge.models.exact.aligned_activation import align_activations
from flowedge.models.exact.attention_test import AttentionSizes, attention_sizes
from flowedge.models.exact.product_test import product_counts
from flowedge.models.exact.row_counts import RowCounts, pad_rows
from flowedge.models.exact.rows_alone import RowsAlone
from flowedge.models.kv.store import head_size
from flowedge.models.layers import attention
from flowedge.models.layers.experts import ExpertLinears
from flowedge.models.layers.rotary import Rotary
from flowedge.models.lean.lean_layer import LeanLayer

_COMPARED_ROWS = (1, 3, 5, 16, 33)  # a layer is tested with, beside the most rows
_MOST_COMPARED = 64


@dataclass(frozen=True)
class Exactness:
    """The sizes of an exact block's products.

    Attributes:
        row_counts: numbers of rows of a forward.
    """

    row_counts: RowCounts
    attention: AttentionSizes


@dataclass(frozen=True)
class ExactTrial:
    """The result of a block's self-test.

    Attributes:
        exactness: None when the block cannot be exact on its device.
        reason: why not; empty when it can.
    """

    exactness: Exactness | None
    reason: str = ""


@torch.inference_mode()
def try_exactness(
    layers: Sequence[nn.Module], config: Any, rotary: Rotary, dtype: torch.dtype, device: torch.device
) -> ExactTrial:
    """Test on their device whether layers can compute exact rows; takes milliseconds to a few seconds.

    The layers are left with ordered attention when they can, and with masked attention when not.
    """
    heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
    sizes = attention_sizes(device, kv_heads, heads // kv_heads, head_size(config))
    if sizes is None:
        return ExactTrial(None, f"float32 products on {device} add up in an order that depends on the rows")
    counts = product_counts((module for layer in layers for module in layer.modules()), dtype, device)
    if counts is None:
        return ExactTrial(None, f"products of {dtype} on {device} depend on the number of rows")
    for index, layer in enumerate(layers):
        _configure(layer, attention.ORDERED, counts)
        if device.type == "cpu":
            align_activations(layer)
        if (index == 0 or not _same_kind(layer, layers[index - 1])) and not _rows_are_equal(
            layer, index, rotary, counts, (int(config.hidden_size), dtype, device)
        ):
            for changed in layers:
                _configure(changed, attention.MASKED, None)
            return ExactTrial(None, f"a layer's rows on {device} depend on their number or place")
    return ExactTrial(Exactness(counts, sizes))


def _configure(layer: Any, name: str, counts: RowCounts | None) -> None:
    if not isinstance(layer, LeanLayer):  # whose attention is that of its mask
        layer.self_attn.config._attn_implementation = name
    for module in layer.modules():
        if isinstance(module, ExpertLinears):
            module.row_counts = counts or module.row_counts


def _same_kind(layer: nn.Module, other: nn.Module) -> bool:
    """Whether two layers have the same modules of the same sizes."""
    return _signature(layer) == _signature(other)


def _signature(layer: nn.Module) -> list[tuple[str, type, tuple[int, ...]]]:
    parts = [*layer.named_parameters()]
    return [(name, type(part), tuple(part.shape)) for name, part in parts]


def _rows_are_equal(
    layer: nn.Module,
    index: int,
    rotary: Rotary,
    counts: RowCounts,
    like: tuple[int, torch.dtype, torch.device],
) -> bool:
    """Whether rows that see themselves alone have the same bits among more and among fewer rows.

    Args:
        like: width, dtype and device of the rows.
    """
    hidden_size, dtype, device = like
    most = min(counts.most, _MOST_COMPARED)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn((counts.padded(most), hidden_size), generator=generator)
    hidden = hidden.to(device=device, dtype=dtype)
    positions = torch.arange(len(hidden), device=device)

    def compute(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        count = counts.padded(len(rows))
        padded, padded_at = pad_rows(rows, count)[None], pad_rows(at, count)[None]
        alone, (on_host,) = RowsAlone(), to_host(padded_at[0])
        output: torch.Tensor = layer(
            padded,
            attention_mask=(alone, None),
            position_ids=padded_at,
            past_key_values=alone,
            position_embeddings=rotary(padded, padded_at, on_host)[index],
        )
        return output[0, : len(rows)]

    reference = compute(hidden, positions)
    shift = most // 2 - 1
    if not torch.equal(compute(hidden.roll(shift, 0), positions.roll(shift, 0)).roll(-shift, 0), reference):
        return False
    return all(
        torch.equal(compute(hidden[-rows:], positions[-rows:]), reference[-rows:])
        for rows in _COMPARED_ROWS
        if rows <= most
    )
