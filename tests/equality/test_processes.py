"""The output of real processes over real sockets is the plain model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowedge.client import Client, Generation
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.sampling import SamplingParams
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids
from tests.equality.conftest import reference
from tests.support.breadth import dealt, dealt_thinly
from tests.support.processes import AgentProcess

STRATEGIES = ("autoregressive", "flowspec", "auto")
SAMPLINGS = {
    "T0": SamplingParams(),
    "T0.7": SamplingParams(temperature=0.7, seed=11),
    "T1-top": SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=12),
}
PROMPT = "Tell me a short story about a fox who could not sleep."
NEW_TOKENS = 24


def generate(
    address: str, strategy: str, sampling: SamplingParams, prompt: str = PROMPT, **options: Any
) -> Generation:
    with Client(address, timeout_s=120) as client:
        return client.generate(
            prompt,
            strategy=strategy,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            max_new_tokens=NEW_TOKENS,
            **options,
        ).result()


def assert_equal(generation: Generation, sampling: SamplingParams, model: ReferenceModel) -> None:
    """Token for token, the end included."""
    eos = eos_token_ids(Checkpoint.open("bundled"))
    expected = model.generate(generation.prompt_ids, sampling, NEW_TOKENS, eos)
    assert generation.token_ids == expected.token_ids
    assert generation.finish_reason == ("eos" if expected.token_ids[-1] in eos else "length")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("strategy", "sampling"), dealt_thinly(STRATEGIES, list(SAMPLINGS)))
def test_over_four_stages(cluster4: str, strategy: str, sampling: str) -> None:
    generation = generate(cluster4, strategy, SAMPLINGS[sampling])
    assert_equal(generation, SAMPLINGS[sampling], reference("none"))
    assert len(generation.statistics["stages"]) == 4


def test_a_long_prompt_goes_through_in_chunks(cluster4: str) -> None:
    prompt = "The boat sailed on, and on the next day it met another boat. " * 60
    generation = generate(cluster4, "auto", SAMPLINGS["T0.7"], prompt)
    assert len(generation.prompt_ids) > 500
    assert_equal(generation, SAMPLINGS["T0.7"], reference("none"))


def test_two_requests_at_once_do_not_see_each_other(cluster4: str) -> None:
    with Client(cluster4, timeout_s=240) as client:
        both = [
            client.generate(PROMPT, strategy=strategy, temperature=0.7, seed=seed, max_new_tokens=NEW_TOKENS)
            for strategy, seed in (("auto", 21), ("naive_pp", 22))
        ]
        for generation, seed in zip(both, (21, 22), strict=True):
            sampling = SamplingParams(temperature=0.7, seed=seed)
            assert_equal(generation.result(), sampling, reference("none"))


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize(("stages", "verification"), dealt_thinly([1, 8], ["draft-node", "last-stage"]))
def test_over_one_stage_and_over_one_layer_a_stage(
    idle_agents: list[AgentProcess], stages: int, verification: str
) -> None:
    address = assembled(idle_agents[: stages + 1], verification=verification)
    for strategy in STRATEGIES:
        generation = generate(address, strategy, SAMPLINGS["T0.7"])
        assert_equal(generation, SAMPLINGS["T0.7"], reference("none"))
        assert generation.statistics["verification"] == verification


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("quant", dealt(["nf4", "int8", "int4"], "int8".__eq__))
def test_quantised(idle_agents: list[AgentProcess], quant: str) -> None:
    """Quantised kernels may round differently for one row and for many: differences are judged."""
    generation = generate(assembled(idle_agents[:3], quant), "auto", SAMPLINGS["T0.7"])
    model = reference(quant)
    text = [*generation.prompt_ids, *generation.token_ids]
    tolerance = model.measure_tolerance((text * 4)[:256]).value
    judgement = model.judge(generation.prompt_ids, generation.token_ids, SAMPLINGS["T0.7"], tolerance)
    assert judgement.passed, judgement


@pytest.mark.slow
def test_earlier_answers_of_a_tenant_and_of_no_other(idle_agents: list[AgentProcess]) -> None:
    address = assembled(idle_agents[:3], drafter=("ngram",), answer_store=2000)
    segments = []
    for tenant in ("anna", "anna", "bert", ""):
        generation = generate(address, "naive_pp", SAMPLINGS["T0"], tenant=tenant)
        assert_equal(generation, SAMPLINGS["T0"], reference("none"))
        segments.append(len(generation.statistics["counters"]["accepted_per_segment"]))
    first, again, *others = segments
    assert again < first
    assert others == [first, first]


def assembled(agents: Sequence[AgentProcess], quant: str = "none", **settings: Any) -> str:
    addresses = [agent.address for agent in agents]
    chosen = {"drafter": ("bundled",), "quant": quant, "dtype": "float32"} | settings
    spec = PipelineSpec(draft_node=addresses[0], stages=tuple(addresses[1:]), **chosen)
    assemble(spec, lambda *_: None)
    return addresses[0]
