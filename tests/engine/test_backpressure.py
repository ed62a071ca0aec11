"""A stage that is far slower than the others slows the draft node down; nothing piles up before it."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.messages import Message
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftJob, ForwardBatch, StageJob
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import RandomCosts
from tests.engine.recoveries import Cluster
from tests.support.breadth import dealt

SLOW = 1
PROMPT = (0, 1, 2) * 40  # 60 chunks of two rows
MOST_CHUNKS = 16  # of all prompts together, over three stages
# Segments of one session in decoding; strategies that draft without a look at the stages send more.
MOST_SEGMENTS = {"flowspec": 128, "pipeinfer": 128, "pipespec": 128}
USUAL_SEGMENTS = 6
TESTED = [("auto", 4)]  # by `make test`


class UnequalCosts(RandomCosts):
    """Of a pipeline whose second stage is 20 times slower than the others."""

    def stage_job(self, stage: int, job: StageJob) -> float:
        return 20.0 if stage == SLOW and isinstance(job, ForwardBatch) else 1.0

    def draft_job(self, job: DraftJob) -> float:
        return 0.1

    def transfer(self, sender: int, message: Message) -> float:
        return 0.1

    def latency(self, sender: int) -> float:
        return 0.1


def most_queued(strategy: str, sessions: int, prompt: tuple[int, ...]) -> int:
    """Return the most segments that have waited before one stage, while answers are computed."""
    rng = np.random.default_rng(36)
    lost = Cluster(rng, costs=UnequalCosts(rng)).pipeline((1, 1, 1))
    for number in range(sessions):
        asked = Request(
            session=f"s{number}",
            prompt=prompt,
            sampling=SamplingParams(),
            max_new_tokens=30,
            strategy=strategy,
        )
        lost.pipeline.start(asked, 0.0)
    most = 0
    while lost.pipeline.step():
        most = max(most, *(stage.load().queued for stage in lost.stages))
    return most


@pytest.mark.parametrize(
    ("strategy", "sessions"), dealt([(name, n) for name in STRATEGIES for n in (1, 4)], TESTED.__contains__)
)
@pytest.mark.timeout(300)
def test_a_stage_that_is_20_times_slower_has_little_before_it(strategy: str, sessions: int) -> None:
    of_answers = sessions * MOST_SEGMENTS.get(strategy, USUAL_SEGMENTS)
    assert most_queued(strategy, sessions, PROMPT[:2]) <= of_answers
    assert most_queued(strategy, sessions, PROMPT) <= of_answers + MOST_CHUNKS
