"""A walk over logits that are computed on demand is the walk over the logits of all rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.core.sampling import SamplingParams, walk
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.path_logits import AHEAD, PathLogits
from flowedge.models.sampling.token_sampler import TokenSampler

HIDDEN, VOCAB, ROWS = 64, 30, 40


def random_tree(seed: int, dtype: torch.dtype) -> tuple[LMHead, torch.Tensor, list[int], list[int]]:
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    weight = nn.Parameter(torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype), requires_grad=False)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator).to(dtype)
    parents = [-1, *(int(rng.integers(row)) for row in range(1, ROWS))]
    return LMHead(weight, "lm_head.weight"), hidden, parents, rng.integers(0, VOCAB, ROWS).tolist()


def draws(sampler: TokenSampler, logits_of: Callable[[int], torch.Tensor]) -> Callable[[int], int]:
    return lambda row: sampler.draw(logits_of(row), 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_walk_is_that_over_all_logits(dtype: torch.dtype, temperature: float) -> None:
    lengths = set()
    for seed in range(20):
        head, hidden, parents, tokens = random_tree(seed, dtype)
        if not head.rows_are_apart:
            pytest.skip("the kernels do not run here")
        sampler = TokenSampler(SamplingParams(temperature=temperature, seed=seed), VOCAB)
        everything = head.logits(hidden)
        path = [0]
        while path[-1] in parents:  # a true path down to a leaf
            path.append(ROWS - 1 - parents[::-1].index(path[-1]))
        for before, after in pairwise(path):
            tokens[after] = sampler.draw(everything[before], 7)
        logits = PathLogits(head, hidden, parents)
        found = walk(tokens, parents, draws(sampler, logits.of))
        assert found == walk(tokens, parents, draws(sampler, everything.__getitem__))
        for row in found.accepted:
            assert torch.equal(logits.of(row), everything[row])
        assert logits.computed <= AHEAD * len(found.accepted)
        lengths.add(len(found.accepted))
    assert len(lengths) > 2


def test_the_likeliest_rows_are_computed_with_the_row_that_is_asked_for() -> None:
    head, hidden, _, _ = random_tree(0, torch.float32)
    logits = PathLogits(head, hidden, [-1, 0, 0, 1, 1, 3, 5, *[2] * (ROWS - 7)])
    logits.of(0)
    assert logits.computed == AHEAD == 4, "rows 0, 1, 3 and 5"
    logits.of(5)
    assert logits.computed == 4
    logits.of(2)
    assert logits.computed == 6, "row 2 and its first child"
