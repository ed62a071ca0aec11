"""A whole pipeline of a real model in one process, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint import Checkpoint
from flowedge.models.head import LMHead
from flowedge.runtime.draft_node import DraftNode, DraftNodeSpec
from flowedge.runtime.executors import BlockExecutor, HeadExecutor
from flowedge.runtime.jobs import Drafter
from flowedge.runtime.stage import Stage, StageSpec
from flowedge.runtime.stopping import TextStream
from flowedge.runtime.virtual import Costs, ExpressFault, VirtualPipeline
from flowedge.strategies.registry import make_strategy


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
    express_fault: ExpressFault | None = None,
) -> VirtualPipeline:
    """Stages of `split` layers each, and a draft node, over one checkpoint in fp32.

    Raises BadRequestError when the split does not add up to the model's layers.
    """
    config = checkpoint.config
    stages: list[Stage] = []
    executors: list[BlockExecutor] = []
    start = 0
    for index, layers in enumerate(split):
        block = LayerBlock.load(checkpoint, start, start + layers, quant=quant, dtype=torch.float32)
        spec = StageSpec(is_first=start == 0, width=config.hidden_size, vocab_size=config.vocab_size)
        stages.append(Stage(f"v{index + 1}", spec))
        executors.append(BlockExecutor(block))
        start += layers
    node = DraftNode(
        "d0",
        DraftNodeSpec(
            width=config.hidden_size,
            max_positions=config.max_position_embeddings,
            prefill_rows=prefill_rows,
            has_drafter=drafter is not None,
        ),
        lambda request: make_strategy(request.strategy, request.strategy_options),
        make_text,
    )
    return VirtualPipeline(node, HeadExecutor(head, drafter), stages, executors, costs, express_fault)
