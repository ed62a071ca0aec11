"""Children ranked by the noise of the draws, against a direct computation and the target's sampler."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from flowedge.core.arrays import FloatArray
from flowedge.core.gumbel_noise import gumbel_noise_of
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import DraftLayer
from flowedge.drafting.ranking import ERROR_SCALE, RankedNodes, best_drawn_of, drawn_scores, ranked
from flowedge.models.sampling.token_sampler import TokenSampler

VOCAB = 700
POSITIONS = [5, 5, 9, 2**40]
SAMPLINGS = [
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.3, seed=2**62),
    SamplingParams(temperature=2.5, seed=4),
    SamplingParams(temperature=1e-6, top_p=0.9, seed=4),
    SamplingParams(temperature=1e300, seed=4),
    SamplingParams(temperature=0.7, top_k=1, seed=5),
    SamplingParams(temperature=1.0, top_k=20, seed=6),
    SamplingParams(temperature=1.0, top_k=VOCAB + 9, seed=6),
    SamplingParams(temperature=1.0, top_p=0.01, seed=7),
    SamplingParams(temperature=1.5, top_p=0.97, seed=8),
    SamplingParams(temperature=1.2, top_k=30, top_p=0.8, seed=9),
]


def some_logits(seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(len(POSITIONS), VOCAB, generator=torch.Generator().manual_seed(seed))


def log_softmax(values: FloatArray) -> FloatArray:
    shifted = values - values.max()
    return shifted - np.log(np.exp(shifted).sum())


def direct(logits: torch.Tensor, sampling: SamplingParams, position: int) -> FloatArray:
    """The scores of one row as their definition says, token by token."""
    q = log_softmax(logits.double().numpy())
    order = np.argsort(-q)[: sampling.top_k or VOCAB]
    shares = np.exp(log_softmax(q[order] / sampling.temperature))
    kept = order[np.cumsum(shares) - shares < sampling.top_p] if sampling.top_p < 1 else order
    drawn = q + sampling.temperature * gumbel_noise_of(sampling.seed, position, np.arange(VOCAB))
    floor, best = q[kept].min(), drawn[kept].max()
    for token in set(range(VOCAB)) - set(kept.tolist()):
        drawn[token] = q[token] - floor + min(drawn[token], best)
    return log_softmax(drawn / ERROR_SCALE)


def ranked_alone(*nodes: Any) -> DraftLayer:
    """Return the children of the nodes of one session; arguments as of RankedNodes."""
    (layer,) = ranked([RankedNodes(*nodes)])
    return layer


def test_scores_are_what_their_definition_says() -> None:
    for sampling in SAMPLINGS:
        logits = some_logits()
        scores = drawn_scores(logits, sampling, POSITIONS)
        assert scores.shape == logits.shape
        layer = ranked_alone(logits, 10, sampling, POSITIONS)
        assert layer.tokens.dtype == np.int64 and layer.log_probs.dtype == np.float64
        assert (layer.log_probs <= 0).all() and (np.diff(layer.log_probs) <= 0).all()
        for row, position in enumerate(POSITIONS):
            assert math.isclose(float(scores[row].double().exp().sum()), 1, abs_tol=1e-5)
            if sampling.temperature < 1e30:
                expected = direct(logits[row], sampling, position)
                np.testing.assert_allclose(scores[row].numpy(), expected, rtol=1e-4, atol=1e-3)
                np.testing.assert_allclose(layer.log_probs[row], np.sort(expected)[::-1][:10], atol=1e-3)


def test_the_first_child_is_the_token_drawn_when_the_drafter_is_the_target() -> None:
    for sampling in SAMPLINGS:
        sampler = TokenSampler(sampling, VOCAB)
        for seed, scale in enumerate((0.5, 2.0, 6.0)):
            logits = some_logits(seed, scale)
            first = ranked_alone(logits, 3, sampling, POSITIONS).tokens[:, 0].tolist()
            assert first == [sampler.draw(row, at) for row, at in zip(logits, POSITIONS, strict=True)]


def test_columns_are_ranked_by_the_noise_of_the_tokens_they_stand_for() -> None:
    sampling, columns = SAMPLINGS[0], torch.randperm(VOCAB)[:40]
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, columns] = some_logits()[0, :40]
    whole = ranked_alone(logits, 50, sampling, [7])
    narrow = ranked_alone(logits[:, columns], 50, sampling, [7], columns)
    assert narrow.tokens.shape == (1, 40), "no more children than there are columns"
    assert narrow.tokens[0].tolist() == whole.tokens[0, :40].tolist()
    np.testing.assert_allclose(narrow.log_probs[0], whole.log_probs[0, :40], atol=1e-5)


def test_without_noise_children_are_the_likeliest() -> None:
    logits = some_logits()
    layer = ranked_alone(logits, 4, None, POSITIONS)
    best = torch.topk(torch.log_softmax(logits, -1), 4)
    assert layer.tokens.tolist() == best.indices.tolist()
    np.testing.assert_allclose(layer.log_probs, best.values.numpy(), atol=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1e300])
def test_what_the_candidates_leave_missing_counts_as_one_more(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=11)
    candidates = [(4, math.log(0.5)), (9, math.log(0.2)), (2, math.log(0.1))]
    scored = best_drawn_of(candidates, 2, sampling, 6)
    assert len(scored) == 2 and all(score <= 0 for _, score in scored)
    if temperature < 1e30:
        noise = gumbel_noise_of(11, 6, np.array([4, 9, 2]))
        drawn = [p + temperature * g for (_, p), g in zip(candidates, noise, strict=True)]
        expected = log_softmax(np.array([*drawn, math.log(0.2)]) / ERROR_SCALE)[:3]
        order = np.argsort(-expected)[:2]
        assert [token for token, _ in scored] == [candidates[i][0] for i in order]
        np.testing.assert_allclose([score for _, score in scored], expected[order])
    certain = best_drawn_of([(3, 0.0)], 2, sampling, 6)
    assert certain == [(3, 0.0)], "nothing is missing"
    assert best_drawn_of([], 2, sampling, 6) == []
