"""Rules along paths that grow and shrink, and the draws by them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.core.errors import NonFiniteError
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.models.sampling.path_rules import PathRules
from flowedge.models.sampling.ruled_draws import RuledDraws, token_likelihood
from flowedge.models.sampling.token_sampler import TokenSampler

VOCAB = 7
RULES = LogitRules(presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((2, 1.5), (6, -3.0)))


def changes(path: PathRules) -> list[float]:
    scores = np.zeros(VOCAB)
    path.apply(scores)
    return scores.tolist()


def expected(tokens: list[int]) -> list[float]:
    scores = [0.0, 0.0, 1.5, 0.0, 0.0, 0.0, -3.0]
    for token in set(tokens):
        scores[token] -= 0.5 + 0.25 * tokens.count(token)
    return scores


def test_the_state_is_that_of_the_path_wherever_it_was_before() -> None:
    rng = np.random.default_rng(0)
    path = PathRules(RULES, None)
    for _ in range(200):
        tokens = rng.integers(0, VOCAB, size=int(rng.integers(0, 9))).tolist()
        path.go_to(tokens)
        assert changes(path) == expected(tokens)
        if tokens:
            path.pop(1)
            assert changes(path) == expected(tokens[:-1])
        path.push(3)
        assert changes(path) == expected([*(tokens[:-1] if tokens else []), 3])


def test_each_draw_sees_the_draws_before_it() -> None:
    path = PathRules(LogitRules(presence_penalty=2.0, logprobs=2), None)
    draws = RuledDraws(
        TokenSampler(SamplingParams(), VOCAB), LogitRules(presence_penalty=2.0, logprobs=2), path
    )
    logits = torch.tensor([0.0, 3.0, 2.5, 2.0, -1.0, 0.0, 0.0])
    assert [draws.draw(logits, position) for position in range(4)] == [1, 2, 3, 1]
    alone = torch.log_softmax(logits.double(), dim=-1)
    for each in draws.likelihoods:
        assert each.logprob == pytest.approx(float(alone[each.token]), abs=1e-12)
        assert [token for token, _ in each.likeliest] == [1, 2]


def test_logits_that_are_no_numbers_are_refused_whatever_the_rules_leave() -> None:
    rules = LogitRules(logit_bias=((1, -100.0),))
    draws = RuledDraws(TokenSampler(SamplingParams(), VOCAB), rules, PathRules(rules, None))
    logits = torch.zeros(VOCAB)
    logits[1] = torch.nan
    with pytest.raises(NonFiniteError, match="position 5"):
        draws.draw(logits, 5)


@pytest.mark.parametrize("likeliest", [0, 1, 3, 7, 20])
def test_the_likeliest_tokens(likeliest: int) -> None:
    logits = np.array([0.5, 2.0, -1.0, 2.0, 2.0, 0.0, -np.inf], dtype=np.float32)
    found = token_likelihood(logits, 5, likeliest)
    exact = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy()
    assert found.logprob == pytest.approx(exact[5], abs=1e-12)
    assert [token for token, _ in found.likeliest] == [1, 3, 4, 0, 5, 2, 6][:likeliest]
    assert [value for _, value in found.likeliest[:6]] == pytest.approx(
        exact[[1, 3, 4, 0, 5, 2]][:likeliest].tolist(), abs=1e-12
    )
