"""A batch of draft jobs has the outcomes that its jobs have alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.core.arrays import Payload
from flowedge.core.errors import BadRequestError, CapacityError, NonFiniteError, ProtocolError
from flowedge.core.grammar import GrammarSource
from flowedge.core.sampling import LogitRules, RuledPath, SamplingParams, Walk
from flowedge.drafting.drafter import DraftLayer, DraftPrefix, GrowRequest
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.heads.store_drafter import StoreDrafter
from flowedge.engine.activity import DRAFT, VERIFY, job_activity
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.jobs import (
    DraftBatch,
    DraftOutcome,
    DropCache,
    ExtendDraft,
    GrowDraft,
    KeepDraft,
    OpenDraft,
    Verify,
)
from flowedge.models.lm_head import LMHead
from flowedge.planning.measuring.scripted_models import DiceDraft
from tests.drafting.made_drafters import HIDDEN, VOCAB, eagle
from tests.support.session_jobs import run_alone

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_k=9, top_p=0.9, seed=5),
    SamplingParams(seed=8),
    SamplingParams(temperature=1.0, seed=7),
)


def executor(dtype: torch.dtype = torch.float32) -> HeadExecutor:
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(VOCAB, HIDDEN).to(dtype), requires_grad=False)
    return HeadExecutor(LMHead(weight, "lm_head.weight"), eagle())


def payload(rng: np.random.Generator, rows: int, dtype: torch.dtype) -> Payload:
    hidden = torch.from_numpy(rng.standard_normal((rows, HIDDEN)).astype(np.float32)).to(dtype)
    return (hidden.view(torch.uint16) if dtype == torch.bfloat16 else hidden).numpy()


def segment(index: int, head: LMHead, rows: int = 9) -> Verify:
    """A tree whose rows have the tokens that are likely after their parents."""
    rng = np.random.default_rng(index)
    dtype = head.weight.dtype
    hidden = payload(rng, rows, dtype)
    given = torch.from_numpy(hidden).view(dtype) if dtype == torch.bfloat16 else torch.from_numpy(hidden)
    parents = np.array([-1, *(int(rng.integers(row)) for row in range(1, rows))])
    likeliest = head.logits(given).topk(3, dim=-1).indices.numpy()
    tokens = [0, *(int(rng.choice(likeliest[parent])) for parent in parents[1:].tolist())]
    depths = [0]
    for parent in parents[1:].tolist():
        depths.append(depths[parent] + 1)
    sampling = SAMPLINGS[index % len(SAMPLINGS)]
    return Verify(f"s{index}", sampling, hidden, np.array(tokens), parents, 20 + np.array(depths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_segments_are_verified_together_as_alone(count: int, dtype: torch.dtype) -> None:
    running = executor(dtype)
    jobs = [segment(index, running.head, rows=3 + index) for index in range(count)]
    assert running.run(DraftBatch(jobs)) == [run_alone(running, job) for job in jobs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_segments_of_sessions_with_rules_are_verified_together_as_alone(dtype: torch.dtype) -> None:
    """In turn, with other rules each, and without any; a job that is run again has the same walk."""
    running = executor(dtype)
    rules = [None, LogitRules(presence_penalty=2.0, logprobs=2), LogitRules(logit_bias=((3, 9.0),)), None]
    jobs = []
    for index in range(8):
        own = rules[index % len(rules)]
        path = None if own is None else RuledPath(own, (4, 4, index))
        jobs.append(replace(segment(index, running.head, rows=3 + index), path=path))
    alone = [run_alone(running, job) for job in jobs]
    assert running.run(DraftBatch(jobs)) == alone == [run_alone(running, job) for job in jobs]
    for job, walk in zip(jobs, alone, strict=True):
        assert isinstance(walk, Walk)
        asked = job.path is not None and job.path.rules.logprobs is not None
        assert len(walk.likelihoods) == (len(walk.accepted) if asked else 0)


def test_a_grammar_without_a_tokenizer_ends_its_session_alone() -> None:
    running = executor()
    jobs = [segment(index, running.head) for index in range(2)]
    rules = LogitRules(grammar=GrammarSource("json_object"))
    refused, walk = running.run(DraftBatch([replace(jobs[0], path=RuledPath(rules, ())), jobs[1]]))
    assert isinstance(refused, BadRequestError)
    assert "no tokenizer is loaded" in str(refused)
    assert walk == run_alone(running, jobs[1])


def test_walks_of_several_sessions_share_their_products(monkeypatch: pytest.MonkeyPatch) -> None:
    running = executor()
    if not running.head.rows_are_apart:
        pytest.skip("the kernels do not run here")
    products: list[int] = []
    logits = running.head.logits
    monkeypatch.setattr(
        running.head, "logits", lambda hidden: (products.append(len(hidden)), logits(hidden))[1]
    )
    jobs = [segment(index, running.head) for index in range(6)]
    products.clear()
    alone = []
    for job in jobs:
        run_alone(running, job)
        alone.append(len(products))
        products.clear()
    running.run(DraftBatch(jobs))
    assert len(products) == max(alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_segment_without_numbers_ends_its_own_session(dtype: torch.dtype) -> None:
    running = executor(dtype)
    jobs = [segment(index, running.head) for index in range(4)]
    damaged = jobs[1].hidden.copy()
    damaged[0] = np.nan
    outcomes = running.run(DraftBatch([jobs[0], replace(jobs[1], hidden=damaged), *jobs[2:]]))
    assert isinstance(outcomes[1], NonFiniteError)
    assert [outcomes[0], *outcomes[2:]] == [run_alone(running, job) for job in (jobs[0], *jobs[2:])]


def extension(index: int, rows: int, start: int = 0) -> tuple[Payload, np.ndarray]:
    rng = np.random.default_rng((index, start))
    return payload(rng, rows, torch.float32), rng.integers(0, VOCAB, rows)


def root(index: int, growth: int, rows: int = 0, start: int = 0) -> GrowDraft:
    given = extension(index, rows, start) if rows else (None, None)
    return GrowDraft(f"s{index}", growth, np.array([0]), np.array([-1]), np.array([5]), 4, *given)


def layer(index: int, growth: int, nodes: tuple[int, ...] = (1, 2), parent: int = 0) -> GrowDraft:
    above = np.full(len(nodes), parent)
    return GrowDraft(f"s{index}", growth, np.array(nodes), above, np.array(nodes) + 7, 4, None, None)


def opened(count: int, capacity: int = 60) -> HeadExecutor:
    running = executor()
    for index in range(count):
        noise = None if index % 2 else SAMPLINGS[1]
        running.run(OpenDraft(f"s{index}", capacity, 1, noise))
    return running


def same(one: DraftOutcome, other: DraftOutcome) -> None:
    if isinstance(one, DraftLayer):
        assert isinstance(other, DraftLayer)
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
    else:
        assert one is None and other is None


def test_layers_and_extensions_are_drafted_together_as_alone() -> None:
    together, alone = opened(4), opened(4)
    rounds: list[list[ExtendDraft | GrowDraft]] = [
        [root(0, 1, 9), ExtendDraft("s1", *extension(1, 7)), root(2, 1, 3)],
        [layer(0, 1), root(1, 1), layer(2, 1), root(3, 4, 12)],
        [layer(0, 1, (3, 4, 5), 1), layer(1, 1), root(2, 2), layer(3, 4)],
        [ExtendDraft("s0", *extension(0, 2, 9)), root(1, 2, 2, 7), layer(2, 2), layer(3, 4, (3,), 2)],
    ]
    for jobs in rounds:
        outcomes = together.run(DraftBatch(jobs))
        for job, outcome in zip(jobs, outcomes, strict=True):
            same(run_alone(alone, job), outcome)


def test_a_job_that_cannot_be_done_ends_its_own_session() -> None:
    together, alone = opened(3, capacity=20), opened(3, capacity=20)
    for running in (together, alone):
        running.run(DraftBatch([root(index, 1, 9) for index in range(3)]))
    jobs = [root(0, 2, 12), layer(1, 1), layer(2, 1, (8,), parent=6)]
    full, served, unknown = together.run(DraftBatch(jobs))
    assert isinstance(full, CapacityError)
    assert isinstance(unknown, ProtocolError) and "nodes [6] are not of growth 1" in str(unknown)
    same(run_alone(alone, jobs[1]), served)


@pytest.mark.parametrize("lacking", [(), ("s1",)])
def test_without_memory_for_a_batch_its_jobs_are_run_in_turn(
    lacking: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    together, alone = opened(3), opened(3)
    jobs = [root(index, 1, 9) for index in range(3)]
    drafter: Any = together.drafter
    assert isinstance(drafter, HeadDrafter)

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    grow = drafter.grow

    def grow_some(requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        if len(requests) == 1 and requests[0].session in lacking:
            out_of_memory()
        return grow(requests)

    monkeypatch.setattr(
        drafter, "_logits", _once(out_of_memory, vars(StoreDrafter)["_logits"].__get__(drafter))
    )
    monkeypatch.setattr(drafter, "grow", grow_some)
    outcomes = together.run(DraftBatch(jobs))
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.session in lacking:
            assert isinstance(outcome, CapacityError)
            assert f"for session {job.session} do not fit" in str(outcome)
        else:
            same(run_alone(alone, job), outcome)


def _once(first: Callable[..., Any], later: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is another one at its first call."""
    calls = iter([first])

    def call(*given: Any) -> Any:
        return next(calls, later)(*given)

    return call


def test_a_session_begins_with_rows_of_one_that_has_ended() -> None:
    running = opened(1)
    run_alone(running, ExtendDraft("s0", *extension(0, 9)))
    expected = run_alone(running, root(0, 1))
    running.run(KeepDraft("s0"))
    running.run(OpenDraft("s1", 60, 1, SAMPLINGS[1], DraftPrefix("s0", 9)))
    running.run(DropCache("s0"))
    same(expected, run_alone(running, replace(root(1, 1))))


def test_without_a_drafter_each_drafting_session_ends() -> None:
    running = HeadExecutor(executor().head, None)
    for job in (OpenDraft("s0", 5, 1), KeepDraft("s0"), DropCache("s0")):
        assert running.run(job) is None
    outcomes = running.run(DraftBatch([root(0, 1), root(1, 1)]))
    assert all(isinstance(outcome, BadRequestError) for outcome in outcomes)


def test_a_batch_has_one_kind_and_each_session_once() -> None:
    head = executor().head
    with pytest.raises(ValueError, match="two jobs of a session"):
        DraftBatch([root(0, 1), root(0, 2)])
    with pytest.raises(ValueError, match="verifies and drafts"):
        DraftBatch([root(0, 1), segment(1, head)])  # type: ignore[list-item]
    assert job_activity(DraftBatch([layer(0, 1), ExtendDraft("s1", *extension(1, 3))])) == (DRAFT, 5)
    assert job_activity(DraftBatch([segment(0, head), segment(1, head)])) == (VERIFY, 18)


def test_an_executor_without_models_runs_a_batch_in_turn() -> None:
    running, head = DiceDraft(), executor().head
    jobs = [segment(index, head) for index in range(3)]
    outcomes = running.run(DraftBatch(jobs))
    assert outcomes == [run_alone(running, job) for job in jobs]
    assert all(isinstance(outcome, Walk) for outcome in outcomes)
