"""Static small forwards of stages and draft head: every strategy draws the tokens that it draws without."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.lm_head import LMHead
from tests.equality.conftest import Pair, request, token_ids
from tests.equality.test_exact import OTHERS, PLAIN
from tests.models.cuda_graphs.static_pipeline import CountingMaker, decode_statically
from tests.support.breadth import dealt
from tests.support.kernels import exact_by_torch

SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, top_p=0.95, seed=13)}
CASES = dealt(product((PLAIN, *OTHERS), SAMPLINGS), ((PLAIN, "T1"), ("flowspec", "T1")).__contains__)
WITHOUT_DRAFTS = (PLAIN,)
PROMPT, TOKENS = 230, 40  # the forwards cross the sizes of 256 columns


@pytest.fixture(autouse=True)
def computed_by_torch() -> Iterator[None]:
    """Static forwards are torch's, and have the bits of torch's other forwards."""
    with exact_by_torch():
        yield


@cache
def head() -> LMHead:
    return LMHead.load(Checkpoint.open("bundled"), torch.bfloat16, exact=True)


def blocks(*, static: bool) -> tuple[list[LayerBlock], list[CountingMaker]]:
    checkpoint = Checkpoint.open("bundled")
    loaded = [
        LayerBlock.load(checkpoint, *each, exact=True, dtype=torch.bfloat16) for each in ((0, 3), (3, 8))
    ]
    return loaded, [decode_statically(block) for block in loaded] if static else []


@cache
def static_drafter() -> tuple[HeadDrafter, CountingMaker]:
    """The bundled head, whose errors are recalled."""
    checkpoint = Checkpoint.open("bundled")
    target = TargetModel(checkpoint, LMHead.load(checkpoint), load_tokenizer(checkpoint), torch.float32)
    drafter, maker = load_drafter(("bundled", "recall"), target), CountingMaker()
    assert isinstance(drafter, HeadDrafter)
    drafter.decode_statically(maker, uncaptured=0)
    return drafter, maker


def generate(
    pair: Pair, drafter: Drafter, loaded: list[LayerBlock], sampling: SamplingParams, strategy: str
) -> tuple[int, ...]:
    pipeline = pair.pipeline([3, 5], drafter=drafter, head=head(), blocks=loaded)
    return token_ids(pipeline.generate(request(pair.prompt(PROMPT), sampling, TOKENS, strategy)))


@cache
def plain(pair: Pair, sampling: str) -> tuple[int, ...]:
    return generate(pair, pair.drafter, blocks(static=False)[0], SAMPLINGS[sampling], PLAIN)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sampling"), CASES)
def test_strategies(pair: Pair, strategy: str, sampling: str) -> None:
    loaded, makers = blocks(static=True)
    drafter, drafting = static_drafter()
    grown = drafting.runs
    assert generate(pair, drafter, loaded, SAMPLINGS[sampling], strategy) == plain(pair, sampling)
    assert strategy in WITHOUT_DRAFTS or drafting.runs > grown + 5, "drafting runs static forwards"
    for maker, pieces in zip(makers, (1, 2), strict=True):
        assert maker.runs > 5 * pieces, "decoding runs static forwards"
