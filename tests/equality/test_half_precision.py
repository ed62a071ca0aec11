"""bfloat16 in real processes: every strategy draws the tokens of plain decoding, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble, release
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.sampling import SamplingParams
from flowedge.models.check.reference import ReferenceModel
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.registry import STRATEGIES, make_strategy
from tests.support.processes import AgentProcess, agents
from tests.support.scheduling import shared

pytestmark = pytest.mark.slow
PROMPT = "A farmer has 12 hens. Each lays 5 eggs a week. How many eggs are that in four weeks? Explain."
PLAIN = "autoregressive"
DRAFTING = [
    name
    for name in STRATEGIES
    if name != PLAIN and not isinstance(make_strategy(name, {}), HierarchicalStrategy)
]
OPTIONS = {
    "T0": GenerateOptions(strategy=PLAIN, max_new_tokens=48, seed=3),
    "T1": GenerateOptions(strategy=PLAIN, max_new_tokens=48, seed=3, temperature=1.0, top_p=0.95),
}
BF16, INT4_KV8 = ("none", "native"), ("int4", "int8")  # quantisation of the weights, format of the KV cache


@pytest.fixture(scope="module", params=shared("half_precision"))
def five() -> Iterator[list[AgentProcess]]:
    """A draft node and four stages, which have no role yet."""
    with agents([f"half-{place}" for place in range(5)]) as running:
        yield running


@pytest.fixture(scope="module")
def draft_node(five: list[AgentProcess], request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the draft node of an exact pipeline in bfloat16, in a quantisation and a KV format."""
    quant, kv = request.param
    addresses = [agent.address for agent in five]
    spec = PipelineSpec(
        draft_node=addresses[0],
        stages=tuple(addresses[1:]),
        drafter=("bundled",),
        quant=quant,
        dtype="bfloat16",
        kv=kv,
        exact="on",
    )
    pipeline = assemble(spec, lambda *_: None)
    with Client(addresses[0]) as client:
        device = client.describe()
    assert (device.dtype, device.kv, device.exact) == ("bfloat16", kv, True)
    yield addresses[0]
    release(addresses, pipeline)


def answer(address: str, options: GenerateOptions) -> tuple[tuple[int, ...], list[int]]:
    """Return the token ids of the prompt and of the answer."""
    with Client(address) as client:
        generation = client.generate(PROMPT, options=options).result()
    return generation.prompt_ids, generation.token_ids


@pytest.mark.proof
@pytest.mark.parametrize(
    ("draft_node", "sampling", "strategies"),
    [
        pytest.param(BF16, "T1", ["auto", "pipedec"], id="bf16-T1"),
        pytest.param(INT4_KV8, "T0", ["flowspec", "pipeinfer"], id="int4-kv8-T0"),
        pytest.param(BF16, "T0", DRAFTING, id="bf16-T0", marks=pytest.mark.proof),
        pytest.param(BF16, "T1", DRAFTING, id="bf16-T1-all", marks=pytest.mark.proof),
        pytest.param(INT4_KV8, "T0", DRAFTING, id="int4-kv8-T0-all", marks=pytest.mark.proof),
        pytest.param(INT4_KV8, "T1", DRAFTING, id="int4-kv8-T1", marks=pytest.mark.proof),
    ],
    indirect=["draft_node"],
)
def test_every_strategy_draws_the_tokens_of_plain_decoding(
    draft_node: str, sampling: str, strategies: list[str]
) -> None:
    options = OPTIONS[sampling]
    _, plain = answer(draft_node, options)
    found = {name: answer(draft_node, replace(options, strategy=name))[1] for name in strategies}
    assert found == dict.fromkeys(strategies, plain)


@pytest.mark.parametrize("draft_node", [BF16], indirect=True, ids=["bf16"])
def test_the_tokens_are_those_of_transformers_within_its_own_rounding(draft_node: str) -> None:
    prompt, tokens = answer(draft_node, OPTIONS["T1"])
    reference = ReferenceModel.load("bundled", dtype=torch.bfloat16)
    tolerance = reference.measure_tolerance([*prompt, *tokens]).value
    sampling = SamplingParams(1.0, top_p=0.95, seed=3)
    judged = reference.judge(prompt, tokens, sampling, tolerance)
    assert judged.passed, judged
