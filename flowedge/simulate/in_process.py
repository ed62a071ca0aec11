"""A whole pipeline of a real model in one process, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from flowedge.core.errors import BadRequestError
from flowedge.drafting.drafter import Drafter
from flowedge.engine.draft_node import DraftNode, DraftNodeSpec
from flowedge.engine.executors import BlockExecutor, HeadExecutor
from flowedge.engine.jobs import DraftExecutor, StageExecutor
from flowedge.engine.middle_executor import MiddleExecutor
from flowedge.engine.stage import Stage, StageSpec
from flowedge.engine.stopping import TextStream
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.config_support import max_positions
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.taps import row_width
from flowedge.models.layers.tensors import payload_dtype
from flowedge.models.layers.whole_model import MiddleModel
from flowedge.simulate.virtual_pipeline import Costs, ExpressDelay, VirtualObserver, VirtualPipeline
from flowedge.strategies.registry import make_strategy


def load_blocks(checkpoint: Checkpoint, split: Sequence[int], quant: str = "none") -> list[LayerBlock]:
    """Blocks of `split` layers each, in fp32.

    Raises BadRequestError when the split does not add up to the model's layers.
    """
    if sum(split) != checkpoint.config.num_hidden_layers:
        raise BadRequestError(
            f"the split {list(split)} is not the model's {checkpoint.config.num_hidden_layers} layers"
        )
    ends = [sum(split[: index + 1]) for index in range(len(split))]
    return [
        LayerBlock.load(checkpoint, end - layers, end, quant=quant, dtype=torch.float32)
        for end, layers in zip(ends, split, strict=True)
    ]


def virtual_pipeline(
    checkpoint: Checkpoint,
    split: Sequence[int],
    costs: Costs,
    *,
    drafter: Drafter | None,
    head: LMHead,
    make_text: Callable[[], TextStream],
    quant: str = "none",
    prefill_rows: int = 128,
    express_fault: ExpressDelay | None = None,
    observer: VirtualObserver | None = None,
    blocks: Sequence[LayerBlock] | None = None,
    middles: Sequence[MiddleModel] = (),
) -> VirtualPipeline:
    """Stages of `split` layers each, and a draft node, over one checkpoint, and middle models beside them.

    `blocks`, of one dtype, are used where they are loaded already, and otherwise loaded in fp32. Raises
    BadRequestError when the split does not add up to the model's layers.
    """
    config = checkpoint.config
    loaded = load_blocks(checkpoint, split, quant) if blocks is None else blocks
    taps = () if drafter is None else drafter.taps
    executors = [BlockExecutor(block, taps) for block in loaded]
    return machine_pipeline(
        HeadExecutor(head, drafter),
        executors,
        costs,
        width=config.hidden_size,
        added_widths=[executor.added_width for executor in executors],
        vocab_size=config.vocab_size,
        spec=DraftNodeSpec(
            width=row_width(config.hidden_size, taps, config.num_hidden_layers),
            dtype=payload_dtype(loaded[0].dtype),
            max_positions=max_positions(config),
            prefill_rows=prefill_rows,
            has_drafter=drafter is not None,
            needs_features=drafter is not None and drafter.needs_features,
            num_stages=len(loaded),
            num_middles=len(middles),
            vocab_size=config.vocab_size,
        ),
        make_text=make_text,
        express_fault=express_fault,
        observer=observer,
        middle_executors=[MiddleExecutor(middle) for middle in middles],
    )


def machine_pipeline(
    draft_executor: DraftExecutor,
    stage_executors: Sequence[StageExecutor],
    costs: Costs,
    *,
    width: int,
    vocab_size: int,
    spec: DraftNodeSpec,
    make_text: Callable[[], TextStream],
    express_fault: ExpressDelay | None = None,
    observer: VirtualObserver | None = None,
    added_widths: Sequence[int] | None = None,
    middle_executors: Sequence[StageExecutor] = (),
) -> VirtualPipeline:
    """A draft node and one stage for each executor, `spec.num_middles` of them for middle models.

    `width` is that of a hidden state, `added_widths` what each stage adds to its rows; nothing by default.
    """
    added = [0] * len(stage_executors) if added_widths is None else added_widths
    stages = [
        Stage(
            f"v{index + 1}",
            StageSpec(
                is_first=index == 0,
                width=width + sum(added[:index]),
                vocab_size=vocab_size,
                dtype=spec.dtype,
                added_width=added[index],
            ),
        )
        for index in range(len(stage_executors))
    ]
    node = DraftNode(
        "d0", spec, lambda request: make_strategy(request.strategy, request.strategy_options), make_text
    )
    middles = [
        Stage(f"m{route}", StageSpec(is_first=True, width=1, vocab_size=vocab_size, answers=True))
        for route in range(1, 1 + len(middle_executors))
    ]
    return VirtualPipeline(
        node,
        draft_executor,
        stages,
        stage_executors,
        costs,
        express_fault,
        observer,
        middles,
        middle_executors,
    )
