"""Pipelines whose small forwards are static: every strategy draws the tokens of a pipeline layer by layer."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer import StreamDecoder
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead
from flowedge.simulate.fixed_costs import FixedCosts
from flowedge.simulate.in_process import virtual_pipeline
from tests.equality.conftest import Pair, request, token_ids
from tests.equality.test_exact import OTHERS, PLAIN
from tests.models.graphs.static_pipeline import CountingMaker, decode_statically
from tests.support.breadth import dealt_diagonally

SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, top_p=0.95, seed=13)}
CASES = dealt_diagonally((PLAIN, *OTHERS), list(SAMPLINGS), one_in=2)
PROMPT, TOKENS = 230, 40  # the forwards cross the sizes of 256 columns


@cache
def head() -> LMHead:
    return LMHead.load(Checkpoint.open("bundled"), torch.bfloat16, exact=True)


def blocks(*, static: bool) -> tuple[list[LayerBlock], list[CountingMaker]]:
    checkpoint = Checkpoint.open("bundled")
    loaded = [
        LayerBlock.load(checkpoint, *each, exact=True, dtype=torch.bfloat16) for each in ((0, 3), (3, 8))
    ]
    return loaded, [decode_statically(block) for block in loaded] if static else []


def generate(
    pair: Pair, loaded: list[LayerBlock], sampling: SamplingParams, strategy: str
) -> tuple[int, ...]:
    pipeline = virtual_pipeline(
        pair.checkpoint,
        [3, 5],
        FixedCosts(),
        drafter=pair.drafter,
        head=head(),
        make_text=lambda: StreamDecoder(pair.tokenizer),
        blocks=loaded,
    )
    return token_ids(pipeline.generate(request(pair.prompt(PROMPT), sampling, TOKENS, strategy)))


@cache
def plain(pair: Pair, sampling: str) -> tuple[int, ...]:
    return generate(pair, blocks(static=False)[0], SAMPLINGS[sampling], PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sampling"), CASES)
def test_strategies(pair: Pair, strategy: str, sampling: str) -> None:
    loaded, makers = blocks(static=True)
    assert generate(pair, loaded, SAMPLINGS[sampling], strategy) == plain(pair, sampling)
    for maker, pieces in zip(makers, (1, 2), strict=True):
        assert maker.runs > 5 * pieces, "decoding runs static forwards"
