"""Draws on a GPU's path: equal to those on the CPU for any logits, and decided from a few candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.gumbel_noise import gumbel_noise, noise_streams
from flowedge.core.sampling import MAX_SEED, SamplingParams
from flowedge.models.sampling.device_noise import NOISE_ERROR, near_noise, noise_hash
from flowedge.models.sampling.draw_candidates import UNDECIDED, find_candidates
from flowedge.models.sampling.token_sampler import TokenSampler
from tests.support.breadth import dealt

FILTERS = [
    {},
    {"temperature": 1e-6},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 0.6, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 10_000},
    {"temperature": 40.0},
]


def candidates_of(logits: torch.Tensor, params: SamplingParams, positions: np.ndarray):
    streams = torch.from_numpy(noise_streams(params.seed, positions).view(np.int64))
    return find_candidates(logits, streams, params)


def kinds_of_logits(rng: np.random.Generator, rows: int, vocab: int) -> dict[str, torch.Tensor]:
    """Logits as models give them, with many ties, with masked tokens, flat, and peaked."""
    normal = torch.from_numpy(rng.normal(0, 4, (rows, vocab)).astype(np.float32))
    masked = normal.clone()
    masked[:, 1::2] = -torch.inf
    return {
        "float32": normal,
        "bfloat16": normal.bfloat16().float(),
        "ties": normal.round(),
        "masked": masked,
        "flat": torch.zeros(rows, vocab),
        "peaked": normal * 10,
    }


@pytest.mark.parametrize("filters", dealt(FILTERS, (FILTERS[0], FILTERS[1], FILTERS[7]).__contains__))
def test_draws_from_candidates_equal_the_samplers(filters):
    rng = np.random.default_rng(3)
    undecided = total = 0
    for seed in range(6):
        params = SamplingParams(**filters, seed=seed)
        for vocab in (3, 50, 2_000):
            sampler = TokenSampler(params, vocab)
            positions = rng.integers(0, 1 << 40, 20)
            for kind, logits in kinds_of_logits(rng, 20, vocab).items():
                candidates = candidates_of(logits, params, positions)
                drawn = [candidates.draw(row, params, int(positions[row])) for row in range(20)]
                wanted = [sampler.draw(logits[row], int(positions[row])) for row in range(20)]
                assert [a if a == UNDECIDED else b for a, b in zip(drawn, wanted, strict=True)] == drawn, kind
                if kind in ("float32", "peaked", "masked"):
                    undecided, total = undecided + drawn.count(UNDECIDED), total + 20
    assert undecided <= total // 100


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-np.inf, -3.0, 0.0, 0.5, 1.0, 1.0000001, 2.0, 20.0]), min_size=1, max_size=30
    ),
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 5.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1.0, 0.999, 0.5, 0.1, 1e-6]),
    seed=st.integers(0, MAX_SEED),
    position=st.integers(0, 2**50),
)
def test_any_logits_any_filters(values, temperature, top_k, top_p, seed, position):
    logits = torch.tensor([values], dtype=torch.float32)
    if not torch.isfinite(logits).any():
        return
    params = SamplingParams(temperature, top_k, top_p, seed)
    drawn = candidates_of(logits, params, np.array([position])).draw(0, params, position)
    assert drawn in (UNDECIDED, TokenSampler(params, len(values)).draw(logits[0], position))


def test_greedy_candidates_take_the_lowest_of_equals_and_refuse_what_is_no_number():
    params = SamplingParams()
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [-3.0, -3.0, -3.0, -3.0], [0.0, torch.nan, 2.0, 2.0]])
    candidates = candidates_of(logits, params, np.arange(3))
    assert [candidates.draw(row, params, 0) for row in range(3)] == [1, 0, UNDECIDED]


def test_a_whole_vocabulary_within_the_error_is_undecided_and_drawn_exactly():
    params = SamplingParams(temperature=1e-6, seed=4)
    logits = torch.full((1, 100), 20.0)
    assert candidates_of(logits, params, np.array([7])).draw(0, params, 7) == UNDECIDED
    draw = TokenSampler(params, 100).draws(logits, np.array([7]))
    assert draw(0) == int(np.argmax(gumbel_noise(4, 7, 100)))


def test_the_hash_is_exact_and_the_noise_near():
    positions = np.array([0, 1, 77, 2**40])
    for seed in (0, 1, MAX_SEED):
        streams = torch.from_numpy(noise_streams(seed, positions).view(np.int64))
        exact = np.stack([gumbel_noise(seed, int(position), 50_000) for position in positions])
        assert np.abs(near_noise(streams, torch.arange(50_000)).numpy() - exact).max() < NOISE_ERROR / 10
        uniform = np.maximum(noise_hash(streams, torch.arange(50_000)).numpy(), 1) * 2.0**-53
        assert np.array_equal(-np.log(-np.log(uniform)), exact)


def test_the_noise_is_near_at_the_ends_of_the_uniforms(monkeypatch):
    ends = [0, 1, 2, (1 << 52) - 1, 1 << 52, (1 << 53) - 2, (1 << 53) - 1]
    monkeypatch.setattr("flowedge.models.sampling.device_noise.noise_hash", lambda *_: torch.tensor([ends]))
    uniform = np.maximum(np.array(ends), 1) * 2.0**-53
    near = near_noise(torch.zeros(1, dtype=torch.int64), torch.arange(7)).numpy()
    assert np.abs(near[0] + np.log(-np.log(uniform))).max() < NOISE_ERROR / 2
