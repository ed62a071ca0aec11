"""Answers go on with the same tokens after any loss: every moment of an answer, and random ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Request
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.strategies.registry import STRATEGIES
from tests.engine.recoveries import SPLITS, VOCAB, Cluster, check, recovered, run_random_recovery
from tests.support.blocks import fifths
from tests.support.breadth import dealt

PROVED = 10_000
CASES = ((DRAFT_NODE, 1), (LAST_STAGE, 4))  # where tokens are drawn, and sessions
TESTED = [("auto", CASES[0]), ("flowspec", CASES[0])]  # by `make test`
RULES = LogitRules(presence_penalty=1.0)


def requests_of(strategy: str, sessions: int) -> list[Request]:
    """Requests whose prompts begin alike; every second one has rules."""
    return [
        Request(
            session=f"s{number}",
            prompt=(0, 1, 2, number % VOCAB),
            sampling=SamplingParams(),
            max_new_tokens=6 + number,
            strategy=strategy,
            rules=RULES if number % 2 else None,
        )
        for number in range(sessions)
    ]


def cluster_of(place: str) -> Cluster:
    return Cluster(np.random.default_rng(36), LAST_STAGE if place == LAST_STAGE else DRAFT_NODE)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("strategy", "place", "sessions"), dealt(product(STRATEGIES, CASES), TESTED.__contains__)
)
@pytest.mark.timeout(600)  # many, on a core that may be shared
def test_a_loss_at_any_event_changes_no_token(strategy: str, place: str, sessions: int) -> None:
    """The pipeline is lost before each event of its answers in turn, and so is the one that takes over."""
    requests = requests_of(strategy, sessions)
    events = recovered(cluster_of(place), requests, [], SPLITS[:1]).events[0]
    assert events > 10 * sessions
    for event in range(0, events + 1, 1 + events // 150):
        after = SPLITS[event % len(SPLITS)]
        done = recovered(cluster_of(place), requests, [event, event // 3], [SPLITS[0], after, SPLITS[-1]])
        check(requests, done)


@pytest.mark.proof
@pytest.mark.timeout(900)  # many, on a core that may be shared
@pytest.mark.parametrize("seeds", list(fifths(range(PROVED))), ids=lambda seeds: f"shard{seeds[0]}")
def test_random_losses_change_no_token(seeds) -> None:
    assert sum(map(run_random_recovery, seeds)) > 3 * len(seeds)


def test_these_random_losses_change_no_token() -> None:
    assert sum(map(run_random_recovery, range(60))) > 180
