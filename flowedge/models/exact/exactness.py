"""Whether a block computes rows whose bits depend on their own paths alone, and with which sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from flowedge.models.attention.attention import Scoring
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.exact.self_test_attention import attention_sizes
from flowedge.models.exact.self_test_products import product_counts
from flowedge.models.experts import ExpertLinears
from flowedge.models.families.parts import KeyHeads, LinearRecurrence
from flowedge.models.host.copies import to_host
from flowedge.models.recurrent.recurrent_layer import RecurrentLayer
from flowedge.models.rotary import Rotary
from flowedge.models.row_counts import ANY_COUNT, RowCounts, pad_rows

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
class ExactProbe:
    """The result of a block's self-test.

    Attributes:
        exactness: None when the block cannot be exact on its device.
        reason: why not; empty when it can.
    """

    exactness: Exactness | None
    reason: str = ""


@torch.inference_mode()
def try_exactness(
    layers: Sequence[DecoderLayer],
    rotary: Rotary,
    dtype: torch.dtype,
    device: torch.device,
    others: Sequence[nn.Module] = (),
) -> ExactProbe:
    """Test on their device whether layers can compute exact rows; takes milliseconds to a few seconds.

    Experts are left with the numbers of rows that were found.

    others: linear layers beside those of the decoder layers.
    """
    architecture = layers[0].architecture
    kinds = dict.fromkeys(layer.self_attn.key_heads for layer in layers if layer.attends)
    sizes = _attention_sizes(device, architecture.heads, list(kinds) or [architecture.usual_heads])
    if sizes is None:
        return ExactProbe(None, f"float32 products on {device} add up in an order that depends on the rows")
    modules = itertools.chain(others, *(layer.modules() for layer in layers))
    counts = product_counts(modules, dtype, device)
    if counts is None:
        return ExactProbe(None, f"products of {dtype} on {device} depend on the number of rows")
    for index, layer in enumerate(layers):
        _configure(layer, counts)
        if (index == 0 or _signature(layer) != _signature(layers[index - 1])) and not _rows_are_equal(
            layer, index, rotary, counts, (architecture.hidden, dtype, device)
        ):
            for changed in layers:
                _configure(changed, ANY_COUNT)
            return ExactProbe(None, f"a layer's rows on {device} depend on their number or place")
    return ExactProbe(Exactness(counts, sizes))


def _attention_sizes(device: torch.device, heads: int, kinds: Sequence[KeyHeads]) -> AttentionSizes | None:
    """The sizes for layers with all these heads of keys; None where one of them has none."""
    found = [attention_sizes(device, kind.count, heads // kind.count, kind.size) for kind in kinds]
    sizes = [each for each in found if each is not None]
    if len(sizes) < len(found):
        return None
    groups = [each.group_rows for each in sizes if each.group_rows is not None]
    return AttentionSizes(max(each.least_queries for each in sizes), min(groups, default=None))


def _configure(layer: DecoderLayer, counts: RowCounts) -> None:
    for module in layer.modules():
        if isinstance(module, ExpertLinears):
            module.row_counts = counts


def _signature(layer: DecoderLayer) -> list[tuple[str, type, tuple[int, ...]]]:
    """The names, types and sizes of a layer's weights."""
    return [(name, type(part), tuple(part.shape)) for name, part in layer.named_parameters()]


class _RowsAlone:
    """The Attention and Updates of rows of which each sees itself alone, so that it reads its own value."""

    def __init__(self) -> None:
        self._values = torch.zeros(0)

    def store_rows(self, layer: int, keys_values: torch.Tensor) -> None:  # noqa: ARG002
        self._values = keys_values[1].unsqueeze(0)

    def attend(
        self,
        layer: int,  # noqa: ARG002
        query: torch.Tensor,
        kv_heads: int,
        scoring: Scoring,  # noqa: ARG002
    ) -> torch.Tensor:
        if not len(self._values):  # the keys are of an earlier layer
            return query
        return self._values.repeat_interleave(query.shape[1] // kv_heads, dim=1)

    def update(self, layer: RecurrentLayer, inputs: torch.Tensor) -> torch.Tensor:
        # Steps are of one row each, whatever other rows there are: what they are given matters alone.
        net = layer.net
        if not isinstance(net, LinearRecurrence):
            return inputs
        rates, decays = inputs[:, net.convolved :].chunk(2, 1)
        return inputs[:, : net.values] + (rates + decays).repeat_interleave(net.value_size, 1)


def _rows_are_equal(
    layer: DecoderLayer,
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
    given = layer.architecture.layer_input
    hidden = torch.randn((counts.padded(most), hidden_size + given), generator=generator)
    hidden = hidden.to(device=device, dtype=dtype)
    positions = torch.arange(len(hidden), device=device)

    def compute(rows: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        count = counts.padded(len(rows))
        padded, padded_at = pad_rows(rows, count), pad_rows(at, count)
        (on_host,) = to_host(padded_at)
        rotation = rotary(padded_at, on_host, dtype)[index]
        own = padded[:, hidden_size:] if given else None
        entered = padded[:, :hidden_size].contiguous()
        output: torch.Tensor = layer(entered, _RowsAlone(), rotation, own)
        return output[: len(rows)]

    reference = compute(hidden, positions)
    shift = most // 2 - 1
    if not torch.equal(compute(hidden.roll(shift, 0), positions.roll(shift, 0)).roll(-shift, 0), reference):
        return False
    return all(
        torch.equal(compute(hidden[-rows:], positions[-rows:]), reference[-rows:])
        for rows in _COMPARED_ROWS
        if rows <= most
    )
