"""The sampler draws from p, from noise that depends on seed, position and token alone; and the walk."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowedge.core.errors import BadRequestError
from flowedge.core.gumbel_noise import gumbel_noise, gumbel_noise_of
from flowedge.core.sampling import MAX_SEED, SamplingParams, Walk, walk
from flowedge.models.sampling.token_sampler import TokenSampler
from tests.support.breadth import dealt

SEEDS = st.integers(0, MAX_SEED)
POSITIONS = st.integers(0, 2**40)


OUT_OF_RANGE: list[dict[str, float]] = [
    {"temperature": -0.1},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"temperature": 1e-310},  # logits divided by it would not be finite
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": -0.5},
    {"top_p": 1.01},
    {"top_p": math.nan},
    {"seed": -1},
    {"seed": MAX_SEED + 1},
]


def test_parameters_out_of_range_are_refused_by_name() -> None:
    for bad in OUT_OF_RANGE:
        with pytest.raises(BadRequestError, match=next(iter(bad))):
            SamplingParams(**bad)


def test_parameters_at_their_bounds_are_taken():
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.01, top_k=0, top_p=1.0, seed=MAX_SEED).greedy


# These numbers are part of the contract: a text made with a seed must come out again in later versions.
GOLDEN = {
    (0, 0): [
        0.043536120941600455,
        -0.7811161632622878,
        0.07684387318499185,
        0.9201626782638694,
        -0.40972157265154124,
    ],
    (42, 1): [
        0.17566497331434425,
        -0.7085561590800066,
        -0.4430658538213712,
        -0.571567754390328,
        0.8215199600837318,
    ],
    (2**63 - 1, 100_000): [
        -0.3845133813343949,
        -1.6419866412559232,
        3.926798125194789,
        0.3207651535764897,
        -0.15942532011622196,
    ],
}


@pytest.mark.parametrize(("seed", "position"), GOLDEN)
def test_noise_is_what_it_always_was(seed, position):
    tokens = np.array([0, 1, 7, 31_999, 151_935], dtype=np.int64)
    np.testing.assert_allclose(gumbel_noise_of(seed, position, tokens), GOLDEN[seed, position], rtol=1e-14)


def test_noise_is_the_documented_hash_in_plain_integers():
    """An independent copy in Python integers: splitmix64's finaliser over (seed, position, token)."""
    mask = 2**64 - 1
    golden, m1, m2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * m1) & mask
        x = ((x ^ (x >> 27)) * m2) & mask
        return x ^ (x >> 31)

    for seed, position, token in [(0, 0, 0), (5, 17, 3), (MAX_SEED, 2**40, 200_000)]:
        stream = mix(mix((seed + golden) & mask) ^ ((position * m2 + golden) & mask))
        bits = mix((stream + token * golden) & mask) >> 11
        want = -math.log(-math.log(max(bits, 1) * 2.0**-53))
        got = gumbel_noise_of(seed, position, np.array([token]))[0]
        assert got == pytest.approx(want, rel=1e-14)


@given(seed=SEEDS, position=POSITIONS, data=st.data())
@settings(max_examples=60)
def test_noise_of_a_subset_in_any_order_is_the_subset_of_the_noise(seed, position, data):
    tokens = np.array(data.draw(st.lists(st.integers(0, 499), max_size=40)), dtype=np.int64)
    whole = gumbel_noise(seed, position, 500)
    assert np.array_equal(gumbel_noise_of(seed, position, tokens), whole[tokens])
    gumbel_noise(seed + 1 if seed < MAX_SEED else 0, position, 10)  # other draws in between change nothing
    assert np.array_equal(gumbel_noise(seed, position, 500), whole)


@given(seed=SEEDS, position=st.integers(0, 2**62), token=st.integers(0, 2**40))
@settings(max_examples=200)
def test_noise_is_finite_for_any_key(seed, position, token):
    noise = gumbel_noise_of(seed, position, np.array([token, 0, 2**62], dtype=np.int64))
    assert noise.dtype == np.float64
    assert np.all(np.isfinite(noise))


def test_noise_is_finite_at_the_ends_of_the_uniform():
    for bits in (1, 2**53 - 1):
        assert math.isfinite(-math.log(-math.log(bits * 2.0**-53)))


@pytest.mark.parametrize("seed", dealt([0, 1, MAX_SEED], {MAX_SEED}.__contains__))
def test_noise_is_gumbel_distributed(seed):
    from scipy import stats

    over_tokens = gumbel_noise(seed, 12, 20_000)
    over_positions = np.array([gumbel_noise_of(seed, t, np.array([3]))[0] for t in range(5_000)])
    over_seeds = np.array([gumbel_noise_of(s, 9, np.array([3]))[0] for s in range(5_000)])
    for sample in (over_tokens, over_positions, over_seeds):
        assert stats.kstest(sample, "gumbel_r").pvalue > 1e-4


def test_neighbouring_draws_are_not_correlated():
    uniform = np.exp(-np.exp(-np.stack([gumbel_noise(3, t, 400) for t in range(400)])))
    bound = 5 / math.sqrt(uniform.size)
    for a, b in [
        (uniform[:-1], uniform[1:]),  # positions
        (uniform[:, :-1], uniform[:, 1:]),  # tokens
        (uniform[:-1, :-1], uniform[1:, 1:]),
        (uniform[:-1, 1:], uniform[1:, :-1]),
    ]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < bound
    seeds = np.stack([gumbel_noise(s, 3, 400) for s in range(400)])
    assert abs(np.corrcoef(seeds[:-1].ravel(), seeds[1:].ravel())[0, 1]) < 5 / math.sqrt(seeds.size) * 2


def test_no_key_is_used_twice():
    """A seed and a position do not add up to the same stream as another pair."""
    first = {gumbel_noise_of(s, t, np.array([0]))[0] for s in range(60) for t in range(60)}
    assert len(first) == 3600
    stream = np.concatenate([gumbel_noise(0, t, 200) for t in range(200)])
    assert len(np.unique(stream)) == stream.size


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.9, -8.0])
SHAPES = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 2.5, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 1},
    {"temperature": 1.0, "top_k": 100},
    {"temperature": 1.0, "top_p": 1e-9},
]


def distribution(temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """p after temperature, top-k and top-p, from their definitions."""
    p = np.exp(LOGITS.double().numpy() / temperature)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0
        p /= p.sum()
    return p


def assert_drawn_from(counts: np.ndarray, p: np.ndarray) -> None:
    from scipy import stats

    assert np.all(counts[p == 0] == 0), "a token that is filtered out was drawn"
    kept = p > 0
    if np.count_nonzero(kept) == 1:
        assert counts[kept] == counts.sum()
        return
    # Cells with few expected draws are put together, as the chi-square test asks.
    order = np.argsort(p[kept])
    observed, expected = counts[kept][order], (p[kept] * counts.sum())[order]
    rare = max(int(np.searchsorted(np.cumsum(expected), 5)), 0)
    observed = np.append(observed[: rare + 1].sum(), observed[rare + 1 :])
    expected = np.append(expected[: rare + 1].sum(), expected[rare + 1 :])
    assert stats.chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("shape", dealt(SHAPES, (SHAPES[1], SHAPES[2], SHAPES[4]).__contains__))
def test_draws_over_positions_follow_p(shape):
    sampler = TokenSampler(SamplingParams(**shape, seed=2024), len(LOGITS))
    draws = [sampler.draw(LOGITS, position) for position in range(3_000)]
    assert_drawn_from(np.bincount(draws, minlength=len(LOGITS)), distribution(**shape))


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_draws_over_seeds_follow_p(shape):
    draws = [TokenSampler(SamplingParams(**shape, seed=seed), 10).draw(LOGITS, 77) for seed in range(3_000)]
    assert_drawn_from(np.bincount(draws, minlength=len(LOGITS)), distribution(**shape))


def test_pairs_of_neighbouring_draws_are_independent():
    from scipy import stats

    sampler = TokenSampler(SamplingParams(temperature=1.0, seed=8), 10)
    draws = np.array([sampler.draw(LOGITS, position) for position in range(6_000)])
    top = np.where(draws < 3, draws, 3)
    table = np.zeros((4, 4))
    np.add.at(table, (top[:-1:2], top[1::2]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_rule_over_a_large_vocabulary_follows_p():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(1_000, 0.5))
    log_p = np.log(np.maximum(p, 1e-300))
    draws = [int(np.argmax(log_p + gumbel_noise(6, position, 1_000))) for position in range(8_000)]
    assert_drawn_from(np.bincount(draws, minlength=1_000), p)


def test_greedy_draws_ignore_the_noise_and_take_the_lowest_of_equals():
    sampler = TokenSampler(SamplingParams(seed=3), 4)
    assert {sampler.draw(torch.tensor([1.0, 5.0, 5.0, 0.0]), t) for t in range(50)} == {1}


def test_a_tiny_temperature_draws_the_most_likely_token():
    sampler = TokenSampler(SamplingParams(temperature=1e-6), len(LOGITS))
    assert {sampler.draw(LOGITS, t) for t in range(100)} == {0}


# ---------------------------------------------------------------------------------------------- the walk


def naive_walk(tokens, parents, drawn) -> Walk:
    """Token by token: find the child that carries the drawn token by looking at every row."""
    at, path = 0, [0]
    while True:
        matching = [i for i in range(len(tokens)) if parents[i] == at and tokens[i] == drawn[at]]
        if not matching:
            return Walk(tuple(path), drawn[at])
        (at,) = matching
        path.append(at)


@st.composite
def returned_rows(draw):
    """A tree without equal siblings, and the token that the target draws after each row."""
    tokens, parents, seen = [draw(st.integers(0, 3))], [-1], set()
    for _ in range(draw(st.integers(0, 25))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, 3))
        if (parent, token) not in seen:
            seen.add((parent, token))
            tokens.append(token)
            parents.append(parent)
    return tokens, parents, draw(st.lists(st.integers(0, 4), min_size=len(tokens), max_size=len(tokens)))


@given(returned_rows())
@settings(max_examples=300)
def test_walk_is_the_naive_walk_and_draws_on_the_true_path_only(rows):
    tokens, parents, drawn = rows
    asked = []

    def draw(row: int) -> int:
        asked.append(row)
        return drawn[row]

    result = walk(tokens, parents, draw)
    assert result == naive_walk(tokens, parents, drawn)
    assert tuple(asked) == result.accepted, "noise is computed only at positions that are visited"
    for above, below in zip(result.accepted, result.accepted[1:], strict=False):
        assert parents[below] == above
        assert tokens[below] == drawn[above]


def test_walk_of_a_lone_root_accepts_it():
    assert walk([9], [-1], lambda row: 4) == Walk((0,), 4)
    assert walk([9], [-1], lambda row: 9) == Walk((0,), 9)
