"""Times a model by its sizes, without the model: generic layers, and an LM head of any weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from flowedge.core.pipeline_config import Quantisation
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.models.block import LayerBlock
from flowedge.models.exact.option import resolve_exact
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import check_available, check_quant
from flowedge.models.token_table import as_quantised
from flowedge.planning.measuring.draft_timing import verify_times
from flowedge.planning.measuring.generic_layers import generic_block
from flowedge.planning.measuring.layer_timing import (
    attention_ms,
    compared_times,
    forward_seconds,
    update_s,
    without_forward,
)
from flowedge.planning.profile.device import MeasuredTimes
from flowedge.planning.profile.measurement import MeasureOptions, ModelTimes, milliseconds, short
from flowedge.planning.profile.model import LayerSize, LayerSizes, ModelProfile, weight_bytes

ROWS = (1, 4, 16, 64)
CACHED_ROWS, LITTLE_CACHED = 256, 16
LEAST_BYTES = 64 << 20  # of the layers that are timed, so that they do not lie in a processor's caches
MOST_LAYERS = 8
DRAWN_ROWS = 1024
ROOM = 0.5  # share of the memory that is free for layers or an LM head


def sized_times(
    options: MeasureOptions,
    sizes: ModelProfile,
    device: torch.device,
    available: int,
    tell: Callable[[str], None],
    record: Callable[[LayerBlock], None],
) -> ModelTimes:
    """Time layers and the LM head of these sizes; the LM head only where it fits.

    Args:
        available: bytes of memory; the other arguments are those of `profile_device`.

    Raises:
        BadRequestError: when the device cannot compute in this quantisation.
    """
    quant = cast("Quantisation", check_quant(options.quant))
    check_available(quant, device)
    layer = LayerSizes(**sizes.model_dump(include=set(LayerSizes.model_fields)))
    own_bytes = LayerSize.of(sizes).weights * weight_bytes(quant, sizes.stored_bytes)
    most = min(MOST_LAYERS, sizes.layers, int(ROOM * available / own_bytes))
    count = max(1, min(most, 1 + int(LEAST_BYTES / own_bytes)))
    dtype, exact = torch_dtype(sizes.dtype), resolve_exact("auto", device.type)
    tell(f"making {count} layers of {sizes.title}")
    block = generic_block(layer, count, dtype, device, quant, exact=exact)
    words = f"layers of {sizes.title}"
    far = compared_times(
        block, ROWS, CACHED_ROWS, options.repeats, lambda text: tell(f"{words}, {text}"), record
    )
    near = compared_times(block, ROWS, LITTLE_CACHED, options.repeats, lambda _: tell(words), record)
    del block
    single: dict[int, float] = {}
    if count > 1:
        alone = generic_block(layer, 1, dtype, device, quant, exact=exact)
        single = compared_times(
            alone, ROWS[:2], CACHED_ROWS, options.repeats, lambda _: tell(words), record
        ).used
    forward = forward_seconds(far.used, single, count)
    states: dict[int, float] = {}
    step = 0.0
    if sizes.states is not None:
        made = generic_block(layer, count, dtype, device, quant, exact=exact, recurrent=True)
        states = compared_times(
            made, ROWS, 0, options.repeats, lambda text: tell(f"{words} with a state, {text}"), record
        ).used
        step = update_s(made, options.repeats)
        del made
    verify: dict[int, float] = {}
    if sizes.vocab * sizes.hidden * sizes.stored_bytes < ROOM * available:
        tell("the LM head")
        table = nn.Parameter(_table(sizes, dtype, device), False)
        head = LMHead(as_quantised(table, quant), "lm_head.weight")
        if exact:
            head.find_row_counts()
        verify = verify_times(HeadExecutor(head, None), options.repeats)
    times = {
        **layer.model_dump(),
        "vocab": sizes.vocab,
        "dtype": sizes.dtype,
        "quant": quant,
        "cached_rows": CACHED_ROWS,
        "forward_ms": short(forward * 1e3),
        "layer_ms": milliseconds(without_forward(far.used, forward, count)),
        "states_ms": milliseconds(without_forward(states, forward, count)) or None,
        "step_ms": short(step * 1e3),
        "attention_ms": attention_ms(far.used, near.used, CACHED_ROWS),
        "layer_by_layer_ms": milliseconds(without_forward(far.layer_by_layer, forward, count)) or None,
        "verify_ms": milliseconds(verify),
    }
    return ModelTimes(
        model=sizes.title,
        num_layers=sizes.layers,
        timed_layers=count,
        tied_embedding=sizes.tied_embedding,
        times=MeasuredTimes.model_validate(times),
    )


def _table(sizes: ModelProfile, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return any weights [vocab, hidden]; to draw so many random numbers would take longer than timing."""
    drawn = torch.randn(min(sizes.vocab, DRAWN_ROWS), sizes.hidden).mul_(0.02).to(device=device, dtype=dtype)
    return drawn.repeat(-(-sizes.vocab // len(drawn)), 1)[: sizes.vocab]
