"""A whole pipeline of a real model in one process, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from flowedge.core.errors import BadRequestError
from flowedge.drafting.drafter import Drafter
from flowedge.engine.draft_node import DraftNode
from flowedge.engine.draft_session import DraftNodeSpec
from flowedge.engine.executors import BlockExecutor, HeadExecutor
from flowedge.engine.jobs import DraftExecutor, StageExecutor
from flowedge.engine.stage import Stage, StageSpec
from flowedge.engine.stopping import TextStream
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.features import max_positions
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.language_model import LanguageModel
from flowedge.models.layers.taps import row_width
from flowedge.models.layers.tensors import payload_dtype
from flowedge.simulate.virtual_pipeline import Costs, ExpressDelay, VirtualObserver, VirtualPipeline
from flowedge.strategies.registry import make_strategy


def load_blocks(checkpoint: Checkpoint, split: Sequence[int], quant: str = "none") -> list[LayerBlock]:
    """Load blocks of `split` layers each, in fp32.

    Raises:
        BadRequestError: when the split does not add up to the model's layers.
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
    side_models: Sequence[LanguageModel] = (),
) -> VirtualPipeline:
    """Return a pipeline of one checkpoint: a draft node, and stages of `split` layers each.

    Args:
        blocks: the loaded blocks of the stages, of one dtype; without them they are loaded in fp32.
        side_models: the models between drafter and target of a hierarchy, the smallest first.

    Raises:
        BadRequestError: when the split does not add up to the model's layers.
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
            num_routes=1 + len(side_models),
            vocab_size=config.vocab_size,
        ),
        make_text=make_text,
        express_fault=express_fault,
        observer=observer,
        side_executors=[BlockExecutor(model.block, model=model) for model in side_models],
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
    side_executors: Sequence[StageExecutor] = (),
) -> VirtualPipeline:
    """Return a pipeline with one stage for each executor.

    Args:
        width: values of a hidden state.
        added_widths: values by which each stage makes the rows wider; 0 by default.
        side_executors: of the one stage of each side route.
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
    side_stages = [
        Stage(f"m{route}", StageSpec(is_first=True, width=1, vocab_size=vocab_size, returns_tokens=True))
        for route in range(1, 1 + len(side_executors))
    ]
    return VirtualPipeline(
        node,
        draft_executor,
        stages,
        stage_executors,
        costs,
        express_fault,
        observer,
        side_stages,
        side_executors,
    )
