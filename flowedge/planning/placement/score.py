"""The tokens a second of a layout, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from flowedge.core.pipeline_config import AUTO, LAST_STAGE
from flowedge.core.request import Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.session_answer import TextStream
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.in_process import machine_pipeline
from flowedge.planning.measuring.scripted_models import HITS, VOCAB, BlankStage, DiceDraft, SilentText
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import Layout, shared_stage
from flowedge.planning.profile.model import NGramSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import TimedOutput, VirtualPipeline

PROMPT, ANSWER = 64, 96  # tokens
FIRST = 24  # tokens, in which `auto` learns what segments cost; they do not count


def profile_of(layout: Layout, goal: Goal, fleet: Fleet) -> PipelineProfile:
    """Return the pipeline of a layout.

    Raises:
        CapacityError: when it does not fit.
    """
    names = [*layout.stages, layout.draft_node]
    followers = [*names[1:], names[0]]
    pipeline = PipelineProfile(
        model=goal.model,
        quant=goal.quant,
        drafter=goal.model.drafters[goal.drafter_name],
        draft_node=fleet.devices[layout.draft_node],
        stages=tuple(fleet.devices[name] for name in layout.stages),
        links=tuple(fleet.between(one, other) for one, other in zip(names, followers, strict=True)),
        split=layout.split,
        drafting=(NGramSize(kind="ngram"),) if goal.lookup else (),
        verification=layout.verification,
        beside=shared_stage(layout.draft_node, layout.stages),
    )
    require_fit(pipeline, goal.rows, goal.sessions)
    return pipeline


def scripted_pipeline(
    pipeline: PipelineProfile,
    hits: Sequence[float] = HITS,
    *,
    make_text: Callable[[], TextStream] = SilentText,
    limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008 (frozen)
    max_positions: int = DraftNodeSpec.max_positions,
    kept_rows: int = 0,
    **room: Any,
) -> VirtualPipeline:
    """Return a pipeline without models, on the virtual clock with the costs of a profile.

    Args:
        hits: as for DiceDraft; limits: of the draft node; room: of every stage, fields of StageSpec.
        kept_rows: as for DraftNodeSpec; 0 switches the reuse of rows off.
    """
    count, place = pipeline.num_stages, pipeline.verification
    spec = DraftNodeSpec(
        1,
        "float32",
        num_stages=count,
        verification=place,
        max_positions=max_positions,
        kept_rows=kept_rows,
        one_host=pipeline.one_host,
        keeps_drafter=kept_rows > 0,
    )
    stages = [
        StageSpec(
            is_first=number == 0,
            width=1,
            vocab_size=VOCAB,
            dtype="float32",
            draws=place == LAST_STAGE and number == count - 1,
            **room,
        )
        for number in range(count)
    ]
    return machine_pipeline(
        spec,
        DiceDraft(hits=hits),
        [(stage, BlankStage(1, "float32", hits=hits)) for stage in stages],
        ProfileCosts(pipeline),
        make_text=make_text,
        limits=limits,
    )


def tokens_per_s(
    pipeline: PipelineProfile, goal: Goal, strategy: str = AUTO, *, answer: int = ANSWER
) -> float:
    """Return the tokens a second of one answer, once `auto` has learnt what its segments cost.

    answer: tokens; a short one tells layouts apart that differ much.
    """
    machines = scripted_pipeline(pipeline, goal.hits)
    machines.start(
        Request("plan", tuple(range(PROMPT)), SamplingParams(), answer, strategy=strategy, noise="plain"), 0.0
    )
    machines.run()
    drawn = [timed for timed in machines.outputs if isinstance(timed.output, Tokens)]
    began = _time_of(drawn, FIRST)
    counted = [timed for timed in drawn if timed.time > began]
    return sum(map(_count, counted)) / (drawn[-1].time - began)


def _time_of(drawn: Sequence[TimedOutput], token: int) -> float:
    """Return when the token of this number was drawn."""
    numbers = accumulate(map(_count, drawn))
    return next(timed.time for timed, number in zip(drawn, numbers, strict=True) if number >= token)


def _count(timed: TimedOutput) -> int:
    return len(timed.output.token_ids) if isinstance(timed.output, Tokens) else 0
