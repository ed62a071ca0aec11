"""The analysis of PipeSpec: the paper's limits and claims, and the process that its equations are about."""

from __future__ import annotations

import numpy as np
import pytest

from flowedge_testbed.report.pipespec_equations import (
    Acceptance,
    ideal_speedup,
    next_rho,
    steady_rho,
    synchronous_hierarchy_speedup,
    synchronous_speedup,
    tokens_per_step,
    verified_tokens,
)

PAIRS = [Acceptance(alpha, gamma) for alpha in (0.05, 0.5, 0.9, 0.99) for gamma in (0.5, 1, 8, 40)]


@pytest.mark.parametrize("pair", PAIRS)
def test_equation_3_is_where_the_recursion_of_equation_2_settles(pair: Acceptance) -> None:
    rho = pair.alpha  # of the first step
    every = [rho]
    for _ in range(20_000):
        rho = next_rho(rho, pair)
        every.append(rho)
    assert np.mean(every) == pytest.approx(steady_rho(pair), rel=1e-3)


@pytest.mark.parametrize("pair", PAIRS)
def test_theorem_1_a_step_generates_more_than_one_token(pair: Acceptance) -> None:
    assert 1 < tokens_per_step(pair) < ideal_speedup(pair) <= pair.gamma + 1


def test_the_limits_of_acceptance() -> None:
    never, always = Acceptance(0, 8), Acceptance(1, 8)
    assert (steady_rho(never), tokens_per_step(never)) == (0, 1), "plain decoding"
    assert (steady_rho(always), tokens_per_step(always)) == (1, 9), "every draft and the bonus token"
    almost = Acceptance(1 - 1e-9, 8)
    assert tokens_per_step(almost) == pytest.approx(9)
    assert tokens_per_step(almost) == pytest.approx(ideal_speedup(almost)), "where equation 6 holds"


def test_a_step_in_numbers() -> None:
    pair = Acceptance(0.5, 2)
    assert verified_tokens(pair) == 1 + 0.5 + 0.25
    assert steady_rho(pair) == pytest.approx(0.5 / (1 - 0.125 + 0.5))
    assert tokens_per_step(pair) == pytest.approx(1 + steady_rho(pair) * 0.75)
    assert tokens_per_step(pair, rho=0.4) == pytest.approx(0.6 + 0.4 * 1.75)
    assert synchronous_speedup(pair, speed_ratio=4) == pytest.approx(1.75 / 1.5)


def test_where_the_paper_says_that_pipespec_is_ahead() -> None:
    rarely = Acceptance(0.1, 8)
    assert synchronous_speedup(rarely, speed_ratio=4) < 1 < tokens_per_step(rarely), "a low acceptance"
    for alpha in (0.6, 0.8, 0.95):  # waiting for drafts is what costs: a drafter without time has no cost
        pair = Acceptance(alpha, 8)
        assert synchronous_speedup(pair, speed_ratio=8.8) < ideal_speedup(pair)
        assert synchronous_speedup(pair, speed_ratio=1e12) == pytest.approx(ideal_speedup(pair))


def test_equation_5_is_the_hierarchy_of_two_models() -> None:
    pair = Acceptance(0.7, 8)
    assert synchronous_hierarchy_speedup([pair], [2.0, 20.0]) == pytest.approx(
        synchronous_speedup(pair, speed_ratio=10)
    )
    first = Acceptance(0.5, 2)  # 2 drafts of 1 s and 5 s for 1.75 tokens: 4 s a token
    assert synchronous_hierarchy_speedup([first, pair], [1.0, 5.0, 20.0]) == pytest.approx(
        synchronous_speedup(pair, speed_ratio=5)
    )


@pytest.mark.parametrize(("alpha", "gamma"), [(0.3, 4), (0.8, 3)])
def test_the_process_that_the_equations_are_about(alpha: float, gamma: int) -> None:
    """Steps drawn one by one, as section 3.3 tells them."""
    rng, steps = np.random.default_rng(4), 40_000
    verifies, verifying, tokens = rng.random() < alpha, 0, 0
    for _ in range(steps):
        verifying += verifies
        agreeing = 0
        while rng.random() < alpha and agreeing < (gamma + 1 if verifies else 1):
            agreeing += 1
        tokens += min(agreeing, gamma) + 1 if verifies else 1
        verifies = agreeing == (gamma + 1 if verifies else 1)
    pair = Acceptance(alpha, gamma)
    assert verifying / steps == pytest.approx(steady_rho(pair), abs=0.01)
    assert tokens / steps == pytest.approx(tokens_per_step(pair), abs=0.03)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha is 1\.2"):
        Acceptance(1.2, 8)
