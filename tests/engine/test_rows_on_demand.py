"""Sessions hold the cache rows that they have written or expect: so more go at once, and none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Failed, Finished, Request
from flowedge.engine.draft_node.cache_budget import UNKNOWN_TOKENS, AdmissionLimits, AnswerLengths
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.session_admission import OutgrownError
from flowedge.engine.pages import PAGE_ROWS, in_pages
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import machine_pipeline
from flowedge.planning.virtual_pipeline import VirtualPipeline
from testbed.tools.kv_sessions import PausingAnswers
from tests.engine.draft_node.draft_node_loop import VOCAB, request
from tests.engine.exact_model import ExactHead, ExactStage, PlainModel
from tests.engine.histories import NoText
from tests.support.breadth import dealt
from tests.support.seams import held_rows, shared_pages

STAGES = 3
SESSIONS = 5


def pipeline_of(
    total_rows: int,
    verification: Any = DRAFT_NODE,
    kept_rows: int = 0,
    *,
    on_demand: bool = True,
    sessions: int = 64,
    **sharing: int,
) -> VirtualPipeline:
    """sharing: fields of StageSpec."""
    stages = [
        (
            StageSpec(
                is_first=not index,
                width=1,
                vocab_size=VOCAB,
                dtype="uint64",
                max_total_capacity=total_rows,
                on_demand=on_demand,
                draws=verification == LAST_STAGE and index == STAGES - 1,
                **sharing,
            ),
            ExactStage(index, VOCAB),
        )
        for index in range(STAGES)
    ]
    spec = DraftNodeSpec(
        width=1,
        dtype="uint64",
        vocab_size=VOCAB,
        prefill_rows=32,
        max_positions=4000,
        num_stages=STAGES,
        verification=verification,
        kept_rows=kept_rows,
        least_prefix=1,
        keeps_drafter=True,
    )
    head = ExactHead(VOCAB, np.random.default_rng(3))
    limits = AdmissionLimits(queue_s=1e9, on_demand=on_demand, sessions=sessions)
    return machine_pipeline(spec, head, stages, FixedCosts(), make_text=NoText, limits=limits)


def most_held_rows(pipeline: VirtualPipeline) -> int:
    return max(map(held_rows, pipeline.stages))


def answered(
    pipeline: VirtualPipeline, requests: Mapping[str, Request], total_rows: int
) -> tuple[PausingAnswers, int]:
    """Return the answers, which are those of the plain model, and the most sessions of the first stage."""
    made, most_open = PausingAnswers(pipeline, requests), 0
    while made.step():
        assert most_held_rows(pipeline) <= total_rows
        most_open = max(most_open, pipeline.stages[0].load().sessions)
    assert not made.running, "every answer ends"
    for name, each in requests.items():
        assert made.said[name] == PlainModel(STAGES, VOCAB).generate(each.prompt, each.max_new_tokens)
    assert pipeline.draft_node.admission.held_rows == 0
    pipeline.draft_node.target.forget(pipeline.draft_node.target.names)
    pipeline.cancel("nobody")  # has the draft node send what it has to send
    pipeline.run()
    assert most_held_rows(pipeline) == 0
    assert not any(shared_pages(each).sessions for each in (pipeline.draft_node, *pipeline.stages))
    return made, most_open


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "verification"),
    dealt(
        [("autoregressive", DRAFT_NODE), ("flowspec", LAST_STAGE), ("auto", DRAFT_NODE)],
        lambda case: case[0] == "auto",
    ),
)
def test_answers_that_outgrow_the_memory_pause_and_go_on_as_they_would_have(
    strategy: str, verification: str
) -> None:
    requests = {
        f"s{number}": request(strategy=strategy, prompt=(number % VOCAB, 2, 3), max_new_tokens=480 + number)
        for number in range(SESSIONS)
    }
    total_rows = 20 * PAGE_ROWS
    pipeline = pipeline_of(total_rows, verification)
    capacity = pipeline.draft_node.prepare(requests["s0"]).capacity
    made, most_open = answered(pipeline, requests, total_rows)
    assert most_open > total_rows // capacity
    assert 0 < sum(made.pauses.values()) <= 4 * SESSIONS


@pytest.mark.parametrize(
    ("strategy", "verification", "keeps"),
    [
        ("autoregressive", DRAFT_NODE, False),
        pytest.param("flowspec", LAST_STAGE, True, marks=pytest.mark.proof),
        pytest.param("auto", DRAFT_NODE, True, marks=pytest.mark.proof),
    ],
)
def test_answers_that_outgrow_their_caches_go_on_in_larger_ones(
    strategy: str, verification: str, keeps: bool
) -> None:
    """Where caches take their memory at once."""
    requests = {
        f"s{number}": request(strategy=strategy, prompt=(number % VOCAB, 2, 3), max_new_tokens=580 + number)
        for number in range(SESSIONS)
    }
    total_rows = 2900
    pipeline = pipeline_of(total_rows, verification, total_rows if keeps else 0, on_demand=False)
    capacity = pipeline.draft_node.prepare(requests["s0"]).capacity
    made, most_open = answered(pipeline, requests, total_rows)
    assert most_open > total_rows // capacity
    errors = [timed.output.error for timed in pipeline.outputs if isinstance(timed.output, Failed)]
    assert all(isinstance(error, OutgrownError) for error in errors)
    assert set(made.pauses.values()) == {1}, "of 512 rows, then of all that are needed"
    reused = [
        timed.output.counters.reused_rows for timed in pipeline.outputs if isinstance(timed.output, Finished)
    ]
    assert any(reused) == keeps, "the rows of the smaller caches are copied, while there is room for them"


def test_what_fits_beside_all_others_is_held_at_once() -> None:
    """So that short answers, and a pipeline with much memory, need no second opening."""
    requests = {
        f"s{number}": request(strategy="autoregressive", prompt=(number % VOCAB, 2, 3), max_new_tokens=520)
        for number in range(SESSIONS)
    }
    capacity = pipeline_of(0).draft_node.prepare(requests["s0"]).capacity
    total_rows = capacity * SESSIONS
    made, most_open = answered(
        pipeline_of(total_rows, on_demand=False, sessions=SESSIONS), requests, total_rows
    )
    assert most_open == SESSIONS and not any(made.pauses.values())


def test_the_first_to_pause_is_the_latest_of_the_least_urgent() -> None:
    urgencies = {"a": "batch", "b": "normal", "c": "batch", "d": "interactive"}
    requests = {
        name: request(strategy="autoregressive", max_new_tokens=600, priority=priority)
        for name, priority in urgencies.items()
    }
    total_rows = 4 * in_pages(UNKNOWN_TOKENS + PAGE_ROWS + 5, 1000) + PAGE_ROWS
    pipeline = pipeline_of(total_rows)
    made, most_open = answered(pipeline, requests, total_rows)
    paused = [timed.output.session for timed in pipeline.outputs if isinstance(timed.output, Failed)]
    assert paused[:2] == ["c", "a"]
    assert most_open == 4 and not made.pauses["d"]


SYSTEM = tuple(number % VOCAB for number in range(5 * PAGE_ROWS + 9))  # with which all of the next begin


@pytest.mark.parametrize(
    ("strategy", "verification", "page_saving", "sharing", "at_once"),
    [
        ("autoregressive", DRAFT_NODE, PAGE_ROWS, 100, 6),
        ("autoregressive", DRAFT_NODE, PAGE_ROWS, 3, 4),
        ("autoregressive", DRAFT_NODE, 0, 0, 3),
        ("flowspec", LAST_STAGE, PAGE_ROWS - 4, 100, 6),
    ],
)
def test_pages_of_a_common_prefix_count_once(
    strategy: str, verification: str, page_saving: int, sharing: int, at_once: int
) -> None:
    """Where pages are not counted by those who share them, fewer are open at once."""
    requests = {
        f"s{number}": request(strategy=strategy, prompt=(*SYSTEM, number % VOCAB), max_new_tokens=60 + number)
        for number in range(SESSIONS + 2)
    }
    total_rows = 3 * (len(SYSTEM) + (90 if strategy == "autoregressive" else 120))
    kept_rows = total_rows if verification == LAST_STAGE else 1
    pipeline = pipeline_of(total_rows, verification, kept_rows, page_saving=page_saving, sharing=sharing)
    _, most_open = answered(pipeline, requests, total_rows)
    assert most_open == at_once


def test_retained_rows_are_forgotten_before_an_answer_pauses() -> None:
    total_rows = 14 * PAGE_ROWS
    pipeline = pipeline_of(total_rows, kept_rows=total_rows)
    for number in range(3):
        pipeline.start(request(f"early{number}", prompt=(number, 1, 2, 3), max_new_tokens=150), 1e-3 * number)
    while pipeline.step():
        pass
    assert pipeline.stages[0].load().retained == 3
    seen = len(pipeline.outputs)
    long = request("long", strategy="autoregressive", prompt=(3, 3, 3), max_new_tokens=12 * PAGE_ROWS)
    pipeline.start(long, pipeline.outputs[-1].time)
    while pipeline.step():
        assert most_held_rows(pipeline) <= total_rows
    last = [timed.output for timed in pipeline.outputs[seen:]]
    assert not any(isinstance(output, Failed) for output in last)
    assert isinstance(last[-1], Finished) and last[-1].reason == "length"
    assert pipeline.stages[0].load().retained < 3


def test_an_answer_is_expected_to_be_as_long_as_nine_of_ten() -> None:
    lengths = AnswerLengths()
    assert lengths.to_come(0) == UNKNOWN_TOKENS
    for tokens in range(10, 110, 10):
        lengths.ended(tokens)
    assert lengths.to_come(0) == 100
    assert lengths.to_come(60) == 60, "half done"
    assert lengths.to_come(30) == 70
    assert lengths.to_come(500) == 500
