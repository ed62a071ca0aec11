"""A whole pipeline of a real model in one process, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.lookup.answer_store import AnswerStore
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.session_answer import TextStream
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import draft_node_spec
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.jobs import DraftExecutor, StageExecutor
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.host.payloads import payload_dtype
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.taps import retained_values
from flowedge.planning.virtual_pipeline import Costs, ExpressDelay, VirtualObserver, VirtualPipeline
from flowedge.text.grammar_compiler import GrammarCompiler


def load_blocks(
    checkpoint: Checkpoint,
    split: Sequence[int],
    quant: str = "none",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[LayerBlock]:
    """Load blocks of `split` layers each.

    Raises:
        BadRequestError: when the split does not add up to the model's layers.
    """
    if sum(split) != checkpoint.config.num_hidden_layers:
        raise BadRequestError(
            f"the split {list(split)} is not the model's {checkpoint.config.num_hidden_layers} layers"
        )
    return [
        LayerBlock.load(checkpoint, start, stop, quant=quant, dtype=dtype, device=device)
        for start, stop in pairwise([0, *accumulate(split)])
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
    side_models: Sequence[Sequence[LanguageModel]] = (),
    verification: VerificationPlace = DRAFT_NODE,
    keeps_taps: bool = False,
    kept_rows: int = DraftNodeSpec.kept_rows,
    grammars: GrammarCompiler | None = None,
    driver: Callable[..., VirtualPipeline] = VirtualPipeline,
    answers: AnswerStore | None = None,
) -> VirtualPipeline:
    """Return a pipeline of one checkpoint: a draft node, and stages of `split` layers each.

    Args:
        blocks: the loaded blocks of the stages, of one dtype; without them they are loaded in fp32.
        side_models: the models between drafter and target of a hierarchy, the smallest first; each as the
            parts of its layers that stages of its own have, in order.
        keeps_taps: whether stages keep what they tap of draft rows until these are accepted.
        kept_rows: most cache rows of ended sessions that stages keep for later prompts.
        grammars: of the tokenizer; without it no request may have a grammar.
        driver: makes the pipeline of its machines.
        answers: where ended answers are kept for the drafter; without it they are not.

    Raises:
        BadRequestError: when the split does not add up to the model's layers.
    """
    loaded = load_blocks(checkpoint, split, quant) if blocks is None else blocks
    taps = () if drafter is None else drafter.taps
    executors = [BlockExecutor(block, taps) for block in loaded]
    if verification == LAST_STAGE:
        executors[-1].head = head
    side_executors = [[BlockExecutor(part.block, model=part) for part in model] for model in side_models]
    kept = [(b.start, b.stop) for b in loaded if verification == DRAFT_NODE or not b.is_last]
    spec = draft_node_spec(
        checkpoint.config,
        drafter,
        taps,
        payload_dtype(loaded[0].dtype),
        verification=verification,
        kept_taps=retained_values(loaded[0].hidden_size, taps, kept) if keeps_taps else (),
        prefill_rows=prefill_rows,
        num_stages=len(executors),
        num_routes=1 + len(side_executors),
        kept_rows=kept_rows,
    )
    return machine_pipeline(
        spec,
        HeadExecutor(head, drafter, grammars, answers),
        [(executor.stage_spec(), executor) for executor in executors],
        costs,
        make_text=make_text,
        express_fault=express_fault,
        observer=observer,
        side_stages=[[(part.stage_spec(), part) for part in model] for model in side_executors],
        driver=driver,
    )


def machine_pipeline(
    spec: DraftNodeSpec,
    draft_executor: DraftExecutor,
    stages: Sequence[tuple[StageSpec, StageExecutor]],
    costs: Costs,
    *,
    make_text: Callable[[], TextStream],
    express_fault: ExpressDelay | None = None,
    observer: VirtualObserver | None = None,
    side_stages: Sequence[Sequence[tuple[StageSpec, StageExecutor]]] = (),
    limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008 (frozen)
    driver: Callable[..., VirtualPipeline] = VirtualPipeline,
) -> VirtualPipeline:
    """Return a pipeline of a draft node, its stages, and the stages of each side route.

    Args:
        limits: of the draft node; those of the stages hold as well.
        driver: makes the pipeline of its machines.
    """
    sides = [stage for route in side_stages for stage in route]
    for stage, _ in (*stages, *sides):
        limits = limits.within(
            total_rows=stage.max_total_capacity,
            session_rows=stage.max_capacity,
            sessions=stage.max_sessions,
            on_demand=stage.on_demand,
            state_rows=stage.state_rows,
            page_saving=stage.page_saving,
            sharing=stage.sharing,
        )
    node = DraftNode(
        "d0",
        spec,
        spec.session_strategies(),
        make_text,
        limits,
    )
    return driver(
        node,
        draft_executor,
        [Stage(f"v{number}", stage) for number, (stage, _) in enumerate(stages, start=1)],
        [executor for _, executor in stages],
        costs,
        express_fault,
        observer,
        [Stage(f"m{number}", stage) for number, (stage, _) in enumerate(sides, start=1)],
        [executor for _, executor in sides],
        [len(route) for route in side_stages],
    )
