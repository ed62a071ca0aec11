"""What `auto` works out with few calls, against its plain form over arrays: equal to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowedge.strategies.auto.acceptance import ProposalAcceptance
from flowedge.strategies.auto.objective import nodes_of_forward
from flowedge.strategies.auto.row_times import RowTimes
from tests.strategies.plain_forms import PlainAcceptance, PlainRowTimes, plain_nodes_of_forward

ROWS = (1, 1, 2, 3, 4, 5, 8, 16, 30, 64, 100, 600)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_times_of_rows_are_those_of_the_plain_form(seed, linear):
    random = np.random.default_rng(seed)
    times, plain = RowTimes(linear=linear), PlainRowTimes(linear=linear)
    for rows in random.choice(ROWS, 40).tolist():
        seconds = random.uniform() * (0.01 + rows / 50)
        times.observe(rows, seconds)
        plain.observe(rows, seconds)
        for most in (1, 9, 64, 9):
            assert times.curve(most).tolist() == plain.times(np.arange(1.0, most + 1)).tolist()
        assert times.seconds(rows) == plain.times(np.array([float(rows)]))[0]


@pytest.mark.parametrize("seed", range(20))
def test_the_nodes_of_a_forward_are_those_of_the_plain_form(seed):
    random = np.random.default_rng(seed)
    for count in (1, 2, 3, 5, 16, 17, 64, 128, 130):
        probabilities = -np.sort(-random.uniform(0, 1, count))
        forward_s = np.sort(random.choice([0.0, 1e-3, 2e-3, 5e-3], count))
        slack_s = random.choice([0.0, 1e-3, math.inf])
        hit, speed, rows = random.uniform(), random.uniform(0, 500), int(random.integers(1, 200))
        given = probabilities, forward_s, float(slack_s), hit, speed, rows
        assert nodes_of_forward(*given) == plain_nodes_of_forward(*given)


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_proposals_are_those_of_the_plain_form(seed):
    random = np.random.default_rng(seed)
    acceptance, plain = ProposalAcceptance(10.0), PlainAcceptance(10.0)
    for _ in range(30):
        count = int(random.integers(1, 17))
        log_probs = -np.sort(random.exponential(2.0, count))
        accepted = int(random.integers(0, count)) if random.uniform() < 0.7 else None
        acceptance.observe(log_probs.tolist(), accepted)
        plain.observe(log_probs.tolist(), accepted)
        if random.uniform() < 0.5:
            asked = -np.sort(random.exponential(2.0, (3, 8)), axis=1)
            assert acceptance.log_share(asked).tolist() == plain.log_share(asked).tolist()
