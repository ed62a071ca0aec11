"""Sessions of all kinds that share a pipeline put out the tokens that each puts out alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftBatch, DraftJob, ForwardBatch, StageJob, session_jobs
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.virtual_pipeline import Costs, VirtualObserver, VirtualPipeline
from flowedge.strategies.auto.measured import MeasuredPipeline
from tests.engine.histories import RandomCosts, express_fault
from tests.equality.conftest import Pair, drafter_of, expected, outputs_of, request, token_ids
from tests.equality.test_exact import exact
from tests.support.mixed_sessions import MixedSession, mixed_sessions
from tests.support.seams import caches_of, is_empty, kept_by, open_drafts, share_measurements, stage_executors

pytestmark = pytest.mark.slow
SPLITS = ([8], [3, 5], [2, 2, 4], [2, 2, 2, 2])
SHARDS = 16
TESTED = 3  # shard of `make test`, of four stages of which the last draws; `make proof` runs the others
TOKENS = 20
SPAN_S = 4.0  # of virtual time


class Together(VirtualObserver):
    """Counts the jobs that were for several sessions, by their kind."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.most = 0  # sessions of a forward

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        if len(session_jobs(job)) < 2:
            return
        if isinstance(job, ForwardBatch):
            self.jobs["forward"] += 1
            self.most = max(self.most, len(job.forwards))
        elif isinstance(job, DraftBatch):
            self.jobs["verify" if job.verifies else "draft"] += 1


def run_together(pipeline: VirtualPipeline, sessions: list[MixedSession]) -> None:
    measured = MeasuredPipeline()
    share_measurements(pipeline.draft_node, measured)
    for session in sessions:
        pipeline.start(session.request, session.start)
        if session.cancel_after is not None:
            pipeline.cancel(session.request.session, session.start + session.cancel_after)
    pipeline.run()
    assert measured.load.sessions == 0, "a session that has ended still has a share of the batches"


def check_answers(
    pipeline: VirtualPipeline,
    sessions: list[MixedSession],
    alone: Callable[[Request], tuple[int, ...]],
    kept_rows: int = 0,
) -> None:
    """Check the tokens of all sessions, and that nothing is left of them but kept rows."""
    for session in sessions:
        outputs = [timed.output for timed in outputs_of(pipeline, session.request.session)]
        session.check(outputs, alone(session.request))
    assert is_empty(pipeline.draft_node)
    assert not any(stage.load().sessions for stage in pipeline.stages)
    assert not open_drafts(pipeline)
    for stage, executor in zip(pipeline.stages, stage_executors(pipeline), strict=True):
        assert set(caches_of(executor)) == set(kept_by(stage)), "a cache that no session has"
        assert kept_rows or is_empty(stage)


def plain(asked: Request) -> tuple[int, ...]:
    return expected(asked.prompt, asked.sampling, asked.max_new_tokens, "none")


@pytest.mark.proof
@pytest.mark.parametrize(
    "shard",
    [
        pytest.param(shard, id=f"shard{shard}", marks=() if shard == TESTED else pytest.mark.proof)
        for shard in range(SHARDS)
    ],
)
def test_random_histories_of_mixed_sessions(pair: Pair, shard: int) -> None:
    rng = np.random.default_rng(shard)
    split = SPLITS[shard % len(SPLITS)]
    place = LAST_STAGE if shard // len(SPLITS) % 2 != shard % 2 else DRAFT_NODE
    taps_are_kept = shard % 3 == 1
    fixed = shard % 4 > 0
    kept_rows = 600 if shard % 2 else 0  # about two prompts
    costs: Costs = FixedCosts() if fixed else RandomCosts(rng)
    together, drafter = Together(), drafter_of(pair, "bundled-eagle3") if taps_are_kept else pair.drafter
    pipeline = pair.pipeline(
        split,
        costs=costs,
        drafter=drafter,
        express_fault=express_fault(rng),
        observer=together,
        verification=place,
        keeps_taps=taps_are_kept,
        kept_rows=kept_rows,
    )
    sessions = mixed_sessions(rng, pair.prompt, TOKENS, SPAN_S if fixed else 40.0)
    run_together(pipeline, sessions)
    check_answers(pipeline, sessions, plain, kept_rows)
    for session in sessions:
        drafter.close(session.request.session)  # what it has kept; other tests use it as well
    if fixed:  # at random times all jobs may be so short that none waits for another
        assert together.most > 2
        assert {"forward", "draft"} <= set(together.jobs)


@pytest.mark.parametrize(
    "precision",
    ["bf16", pytest.param("int8", marks=pytest.mark.proof), pytest.param("int4", marks=pytest.mark.proof)],
)
def test_mixed_sessions_of_exact_pipelines(pair: Pair, precision: str) -> None:
    """Each session has the bits of the same pipeline's plain decoding of it alone."""
    rng = np.random.default_rng(5)
    together = Together()
    pipeline = pair.pipeline([3, 5], observer=together, **exact(precision))
    sessions = mixed_sessions(rng, pair.prompt, 16, SPAN_S)
    run_together(pipeline, sessions)

    def alone(asked: Request) -> tuple[int, ...]:
        plainly = request(asked.prompt, asked.sampling, asked.max_new_tokens, "autoregressive")
        return token_ids(pair.pipeline([3, 5], **exact(precision)).generate(plainly))

    check_answers(pipeline, sessions, alone)
    assert set(together.jobs) == {"forward", "draft", "verify"}


def test_auto_sessions_may_differ_in_the_rows_of_a_segment(pair: Pair) -> None:
    pipeline = pair.pipeline([3, 5])
    sessions = [
        MixedSession(
            Request(
                session=f"s{rows}",
                prompt=pair.prompt(20 + rows),
                sampling=SamplingParams(),
                max_new_tokens=TOKENS // 2,
                strategy="auto",
                strategy_options={"segment_rows": rows},
            ),
            start=0.0,
            cancel_after=None,
        )
        for rows in (1, 2, 16)
    ]
    run_together(pipeline, sessions)
    check_answers(pipeline, sessions, plain)
