"""Links that take longer than the stages: a credit's way back does not keep the first stage idle."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge.core.messages import Message
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.jobs import DraftJob, StageJob
from flowedge.protocol import send_window
from flowedge.strategies.registry import STRATEGIES
from tests.engine.histories import RandomCosts
from tests.engine.recoveries import Cluster
from tests.support.breadth import dealt

LINK, COMPUTE = 20.0, 1.0
# Seconds of an answer, beside those where a segment has to wait for the credit of the one before, at most.
GAINS = {"auto": 0.8, "flowspec": 0.8, "naive_pp": 0.5}


class LongLinks(RandomCosts):
    """Stages of a second, links of twenty."""

    def stage_job(self, stage: int, job: StageJob) -> float:
        return COMPUTE

    def draft_job(self, job: DraftJob) -> float:
        return 0.1

    def transfer(self, sender: int, message: Message) -> float:
        return 0.0

    def latency(self, sender: int) -> float:
        return LINK


def seconds_of(strategy: str) -> float:
    """Return what an answer takes."""
    rng = np.random.default_rng(37)
    lost = Cluster(rng, costs=LongLinks(rng)).pipeline((1, 1, 1))
    asked = Request(
        session="s", prompt=(0, 1), sampling=SamplingParams(), max_new_tokens=60, strategy=strategy
    )
    lost.pipeline.start(asked, 0.0)
    lost.pipeline.run()
    return lost.pipeline.now


@pytest.mark.parametrize("strategy", dealt(STRATEGIES, GAINS.__contains__))
def test_a_segment_does_not_wait_for_a_credit_that_crosses_the_link_twice(strategy, monkeypatch):
    seconds = seconds_of(strategy)
    monkeypatch.setattr(send_window, "_MOST", 1)
    assert seconds <= GAINS.get(strategy, 1.0) * seconds_of(strategy)
