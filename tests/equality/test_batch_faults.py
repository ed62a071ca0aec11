"""What fails for one session of a batch ends that session; the others put out their tokens alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flowedge.core.errors import CapacityError, FlowEdgeError, NonFiniteError, ProtocolError
from flowedge.core.request import Failed
from flowedge.core.sampling import SamplingParams
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import ForwardBatch, StageJob
from flowedge.models.session_rows import SessionRows
from flowedge.planning.virtual_pipeline import VirtualPipeline
from tests.equality.conftest import Pair, drawn, expected, outputs_of, request, token_ids
from tests.support.breadth import dealt_thinly
from tests.support.seams import caches_of, is_empty, open_drafts, stage_executors

pytestmark = pytest.mark.slow
BAD = "s1"
STRATEGIES = ("auto", "naive_pp", "autoregressive", "naive_pp")
SAMPLING = SamplingParams(temperature=0.8, top_p=0.95, seed=4)
TOKENS = 12
Break = Callable[[BlockExecutor], None]


def spoil(executor: BlockExecutor) -> None:
    """What a layer computes for the session are no numbers from here on."""
    caches_of(executor)[BAD].kv.fill_(float("nan"))


def lose(executor: BlockExecutor) -> None:
    del caches_of(executor)[BAD]


def at_large_batch(executor: BlockExecutor, breaks: Break, patch: pytest.MonkeyPatch) -> list[int]:
    """Have something break before a batch of three sessions or more, one of which is BAD with cached rows.

    Returns a list, to which the number of sessions of that batch is added.
    """
    run, sizes = executor.run, list[int]()

    def run_broken(job: StageJob) -> Any:
        forwards = job.forwards if isinstance(job, ForwardBatch) and not sizes else ()
        if len(forwards) > 2 and any(each.session == BAD and each.cached for each in forwards):
            sizes.append(len(forwards))
            breaks(executor)
        return run(job)

    patch.setattr(executor, "run", run_broken)
    return sizes


def start_all(pipeline: VirtualPipeline, pair: Pair) -> dict[str, tuple[int, ...]]:
    """Ask for four answers at once, and return what each is alone."""
    alone = {}
    for index, strategy in enumerate(STRATEGIES):
        prompt = pair.prompt(20 + index)
        pipeline.start(request(prompt, SAMPLING, TOKENS, strategy, session=f"s{index}"))
        alone[f"s{index}"] = expected(prompt, SAMPLING, TOKENS, "none")
    return alone


def check(pipeline: VirtualPipeline, alone: dict[str, tuple[int, ...]], *failed: str) -> list[FlowEdgeError]:
    """Check the answers, and return the errors of the sessions that failed."""
    errors = []
    for session, tokens in alone.items():
        own = outputs_of(pipeline, session)
        if session in failed:
            last = own[-1].output
            assert isinstance(last, Failed)
            errors.append(last.error)
            got = drawn(own)
            assert got == tokens[: len(got)]
        else:
            assert token_ids(own) == tokens
    assert is_empty(pipeline.draft_node)
    assert all(is_empty(stage) for stage in pipeline.stages)
    assert not open_drafts(pipeline)
    assert not any(caches_of(executor) for executor in stage_executors(pipeline))
    return errors


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("place", "breaks", "error", "said"),
    [
        (0, spoil, NonFiniteError, r"rows that layers \d to \d computed are not"),
        (1, lose, ProtocolError, "session s1 has no cache here"),
        pytest.param(
            1, spoil, NonFiniteError, r"rows that layers \d to \d computed", marks=pytest.mark.proof
        ),
        pytest.param(0, lose, ProtocolError, "session s1 has no cache here", marks=pytest.mark.proof),
    ],
)
def test_one_session_of_a_batch_fails(
    pair: Pair,
    place: int,
    breaks: Break,
    error: type[FlowEdgeError],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = pair.pipeline([3, 5])
    sizes = at_large_batch(stage_executors(pipeline)[place], breaks, monkeypatch)
    alone = start_all(pipeline, pair)
    pipeline.run()
    (found,) = check(pipeline, alone, BAD)
    assert sizes
    assert isinstance(found, error)
    with pytest.raises(error, match=rf"device v{place + 1}: .*{said}"):
        raise found


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("error", "lasts"),
    dealt_thinly([ProtocolError("a bug"), torch.OutOfMemoryError("no memory")], [False, True]),
)
def test_sessions_that_cannot_be_computed_together_are_computed_alone(
    pair: Pair, error: Exception, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pair.pipeline([3, 5])
    executor = stage_executors(pipeline)[0]
    forward_together, failures = executor.block.forward_together, list[int]()

    def fail(parts: list[SessionRows], *rest: Any) -> Any:
        if len(parts) > 1 and (lasts or not failures):
            failures.append(len(parts))
            raise error
        return forward_together(parts, *rest)

    monkeypatch.setattr(executor.block, "forward_together", fail)
    alone = start_all(pipeline, pair)
    pipeline.run()
    check(pipeline, alone)
    assert len(failures) > 1 if lasts else len(failures) == 1


def test_a_session_for_which_there_is_no_memory_even_alone_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pair.pipeline([3, 5])
    executor = stage_executors(pipeline)[1]
    forward_together = executor.block.forward_together
    short: list[Any] = []

    def fail(parts: list[SessionRows], *rest: Any) -> Any:
        if any(part.cache is cache for part in parts for cache in short):
            raise torch.OutOfMemoryError("no memory")
        return forward_together(parts, *rest)

    monkeypatch.setattr(executor.block, "forward_together", fail)
    sizes = at_large_batch(executor, lambda _: short.append(caches_of(executor)[BAD]), monkeypatch)
    alone = start_all(pipeline, pair)
    pipeline.run()
    (found,) = check(pipeline, alone, BAD)
    assert sizes
    assert isinstance(found, CapacityError)
    assert "the next rows of session s1 do not fit" in str(found)
