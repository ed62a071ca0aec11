"""Exact pipelines in any precision: no token of any strategy differs from the pipeline's plain decoding."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import Pair, request, token_ids
from tests.support.breadth import dealt, thinnest

PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "int8": {"dtype": torch.bfloat16, "quant": "int8"},
    "int4": {"dtype": torch.bfloat16, "quant": "int4"},
    "bf16-kv8": {"dtype": torch.bfloat16, "kv": "int8"},
}
SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, top_p=0.95, seed=13)}
PLAIN = "autoregressive"
# pipespec needs a middle model; test_pipespec.py is about it.
OTHERS = tuple(name for name in STRATEGIES if name not in (PLAIN, "pipespec"))
TESTED = ("flowspec", "auto", "naive_pp", "specpipe_db", "pipeinfer")  # in `make test`
PROMPT, TOKENS = 140, 24


@cache
def exact_blocks(precision: str) -> list[LayerBlock]:
    checkpoint = Checkpoint.open("bundled")
    ranges = [(0, 3), (3, 8)]
    blocks = [LayerBlock.load(checkpoint, *each, exact=True, **PRECISIONS[precision]) for each in ranges]
    assert all(block.exact for block in blocks), blocks[0].inexact_reason
    return blocks


@cache
def exact_head(precision: str) -> LMHead:
    return LMHead.load(Checkpoint.open("bundled"), PRECISIONS[precision]["dtype"], exact=True)


def exact(precision: str) -> dict[str, Any]:
    """Options of a pipeline of stages of 3 and 5 layers, exact in a precision."""
    return {"head": exact_head(precision), "blocks": exact_blocks(precision)}


def generate(pair: Pair, precision: str, sampling: str, strategy: str) -> tuple[int, ...]:
    asked = request(pair.prompt(PROMPT), SAMPLINGS[sampling], TOKENS, strategy)
    return token_ids(pair.pipeline([3, 5], **exact(precision)).generate(asked))


@cache
def plain(pair: Pair, precision: str, sampling: str) -> tuple[int, ...]:
    return generate(pair, precision, sampling, PLAIN)


@pytest.mark.one_in(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "sampling", "strategy"),
    dealt(
        product(PRECISIONS, SAMPLINGS, OTHERS),
        thinnest(list(PRECISIONS), list(SAMPLINGS), TESTED).__contains__,
    ),
)
def test_strategies_in_every_precision(pair: Pair, precision: str, sampling: str, strategy: str) -> None:
    assert generate(pair, precision, sampling, strategy) == plain(pair, precision, sampling)


@pytest.mark.parametrize("sampling", dealt(SAMPLINGS, "T1".__eq__))
def test_the_size_of_prefill_chunks_changes_no_token(pair: Pair, sampling: str) -> None:
    def with_chunks(rows: int) -> tuple[int, ...]:
        pipeline = pair.pipeline([3, 5], prefill_rows=rows, **exact("bf16"))
        return token_ids(pipeline.generate(request(pair.prompt(PROMPT), SAMPLINGS[sampling], 12, "flowspec")))

    assert with_chunks(128) == with_chunks(37) == with_chunks(1)
