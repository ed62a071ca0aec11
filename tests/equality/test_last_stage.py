"""Token-for-token equality with the plain model where the last stage draws the tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from flowedge.core.messages import Segment
from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.core.request import Failed
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftBatch, DraftJob, StageJob
from flowedge.planning.virtual_pipeline import VirtualObserver
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import (
    Pair,
    drafter_of,
    expected,
    faulty,
    finished,
    outputs_of,
    request,
    token_ids,
)
from tests.support.breadth import dealt, dealt_thinly, thinnest

pytestmark = pytest.mark.slow
SPLITS = {1: [8], 2: [5, 3], 4: [3, 2, 2, 1]}
SAMPLINGS = {
    "greedy": SamplingParams(),
    "T1": SamplingParams(temperature=1.0, seed=5),
    "T0.7-k20-p0.9": SamplingParams(temperature=0.7, top_k=20, top_p=0.9, seed=6),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("strategy", "sampling_name"),
    dealt(
        product(STRATEGIES, ["greedy", "T1"]),
        thinnest(("flowspec", "auto", "specpipe_db", "pipespec", "pipeinfer"), ["greedy", "T1"]).__contains__,
    ),
)
def test_every_strategy(pair: Pair, strategy: str, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(40), SAMPLINGS[sampling_name]
    outputs = pair.pipeline([3, 2, 2, 1], verification=LAST_STAGE).generate(
        request(prompt, sampling, 16, strategy)
    )
    assert token_ids(outputs) == expected(prompt, sampling, 16, "none")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("strategy", "stages", "sampling_name"),
    dealt_thinly(("autoregressive", "auto", "flowspec"), list(SPLITS), list(SAMPLINGS)),
)
def test_stages_and_sampling(pair: Pair, strategy: str, stages: int, sampling_name: str) -> None:
    prompt, sampling = pair.prompt(300), SAMPLINGS[sampling_name]
    pipeline = pair.pipeline(SPLITS[stages], express_fault=faulty(stages, 0.3), verification=LAST_STAGE)
    outputs = pipeline.generate(request(prompt, sampling, 20, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, 20, "none")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("names", ["bundled-small", "ngram", "bundled+bundled-small", "bundled-eagle3"])
def test_drafters_with_and_without_features(pair: Pair, names: str) -> None:
    """What a drafter proposes shows whether it was given the right hidden states."""
    prompt, sampling = pair.prompt(40), SAMPLINGS["T1"]
    own = replace(pair, drafter=drafter_of(pair, names))
    there = own.pipeline([3, 5], verification=LAST_STAGE).generate(request(prompt, sampling, 16, "naive_pp"))
    assert token_ids(there) == expected(prompt, sampling, 16, "none")
    here = own.pipeline([3, 5]).generate(request(prompt, sampling, 16, "naive_pp"))
    rounds = [finished(outputs).counters.accepted_per_round for outputs in (there, here)]
    assert rounds[0] == rounds[1], "the drafter proposed other trees"


class Watching(VirtualObserver):
    """Notes the jobs of the draft node, and the hidden states that come back from the stage at a place."""

    def __init__(self, last: int) -> None:
        self.jobs: list[StageJob | DraftJob] = []
        self.returned: list[Segment] = []
        self._last = last

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        self.jobs.append(job)

    def sent(self, sender: int, message: object, start: float, left: float, arrives: float) -> None:
        if sender == self._last and isinstance(message, Segment):
            self.returned.append(message)


def test_only_rows_on_the_path_come_back(pair: Pair) -> None:
    observer = Watching(last=3)
    prompt = pair.prompt(40)
    outputs = pair.pipeline([2, 2, 2, 2], observer=observer, verification=LAST_STAGE).generate(
        request(prompt, SamplingParams(), 24, "flowspec")
    )
    assert not any(isinstance(job, DraftBatch) and job.verifies for job in observer.jobs)
    drafts = [segment for segment in observer.returned if not segment.committed]
    assert sum(segment.num_rows for segment in drafts) > 2 * sum(len(s.payload) for s in drafts)
    # The last token is drawn after a row that came back; every other token is such a row.
    assert sum(len(segment.payload) for segment in drafts) >= len(token_ids(outputs)) - 1


def test_nothing_but_ids_comes_back_without_a_drafter(pair: Pair) -> None:
    observer = Watching(last=1)
    pair.pipeline([3, 5], observer=observer, verification=LAST_STAGE).generate(
        request(pair.prompt(40), SamplingParams(), 8, "autoregressive")
    )
    assert {segment.payload.size for segment in observer.returned} == {0}


def test_a_session_may_end_in_flight_beside_another(pair: Pair) -> None:
    pipeline = pair.pipeline([2, 2, 2, 2], verification=LAST_STAGE)
    sampling, prompt = SAMPLINGS["T1"], pair.prompt(40)
    pipeline.start(request(prompt, sampling, 16, "auto", session="cancelled"))
    pipeline.cancel("cancelled", time=1.1)
    pipeline.start(request(prompt, sampling, 16, "auto", session="other"), time=0.1)
    pipeline.run()
    assert token_ids(outputs_of(pipeline, "other")) == expected(prompt, sampling, 16, "none")
    assert all(stage.load().drained for stage in pipeline.stages)
    assert not any(isinstance(timed.output, Failed) for timed in pipeline.outputs)
