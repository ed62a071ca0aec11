"""Sessions that begin with rows of others put out the plain model's tokens, on the bundled models."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationPlace
from flowedge.core.request import DecodeCounters
from flowedge.core.sampling import SamplingParams
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.strategies.registry import STRATEGIES
from tests.equality.conftest import (
    Pair,
    drafter_of,
    expected,
    faulty,
    finished,
    outputs_of,
    request,
    token_ids,
)
from tests.equality.test_exact import exact
from tests.support.breadth import dealt, dealt_thinly, thinnest
from tests.support.seams import shared_pages

pytestmark = pytest.mark.slow
SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, top_p=0.9, seed=13)}
STRATEGY_NAMES = tuple(name for name in STRATEGIES if name != "pipespec")
TESTED = ("autoregressive", "specpipe_db")  # in `make test`, beside those with other drafters
DRAFTERS = ("bundled", "bundled-small", "bundled-eagle3", "ngram", "bundled+ngram")  # joined by "+"
PLACES: tuple[VerificationPlace, ...] = (DRAFT_NODE, LAST_STAGE)
KEPT_ROWS = 20_000
TURNS, TOKENS, ADDED = 3, 12, 9
SYSTEM = 150  # tokens that several requests begin with


def pipeline(
    pair: Pair,
    names: str = "bundled",
    place: VerificationPlace = DRAFT_NODE,
    *,
    shares: bool = False,
    **options: Any,
) -> VirtualPipeline:
    """Return a pipeline of two stages; `shares`: whether sessions share pages, as on agents with CPUs."""
    kept = {"keeps_taps": True, "kept_rows": KEPT_ROWS, "prefill_rows": 32} | options
    served = pair.pipeline([3, 5], drafter=drafter_of(pair, names), verification=place, **kept)
    admission = served.draft_node.admission
    admission.limits = replace(admission.limits, on_demand=shares)
    return served


def chat(
    pair: Pair, served: VirtualPipeline, strategy: str, sampling: SamplingParams, name: str = "turn"
) -> tuple[list[tuple[int, ...]], list[DecodeCounters]]:
    """Return the answers of a chat's turns, whose prompts are all that was said, and their counters."""
    prompt, answers, counters = pair.prompt(60), [], []
    for turn in range(TURNS):
        outputs = served.generate(request(prompt, sampling, TOKENS, strategy, session=f"{name}{turn}"))
        counters.append(finished(outputs).counters)
        answers.append(token_ids(outputs))
        prompt = (*prompt, *answers[-1], *pair.prompt(ADDED))
    return answers, counters


def wanted_chat(pair: Pair, sampling: SamplingParams) -> list[tuple[int, ...]]:
    """Return the answers of the plain model to the turns of `chat`."""
    prompt, answers = pair.prompt(60), []
    for _ in range(TURNS):
        answers.append(expected(prompt, sampling, TOKENS, "none"))
        prompt = (*prompt, *answers[-1], *pair.prompt(ADDED))
    return answers


CHATS = [
    *dealt(
        product(STRATEGY_NAMES, ["bundled"], SAMPLINGS, PLACES),
        thinnest(TESTED, ["bundled"], list(SAMPLINGS), PLACES[::-1]).__contains__,
    ),
    *dealt_thinly(("auto", "flowspec"), DRAFTERS[1:], list(SAMPLINGS), PLACES),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("strategy", "names", "sampling_name", "place"), CHATS)
def test_a_chat(pair: Pair, strategy: str, names: str, sampling_name: str, place: VerificationPlace) -> None:
    sampling = SAMPLINGS[sampling_name]
    answers, counters = chat(pair, pipeline(pair, names, place), strategy, sampling)
    assert answers == wanted_chat(pair, sampling)
    assert counters[0].reused_rows == 0
    before = 60
    for turn in counters[1:]:
        assert turn.reused_rows >= before, "the prompt of the turn before is not computed again"
        before += TOKENS + ADDED


@pytest.mark.parametrize(
    ("sampling_name", "place"), dealt(product(SAMPLINGS, PLACES), ("T0", LAST_STAGE).__eq__)
)
def test_a_shared_system_prompt_at_once_and_later(
    pair: Pair, sampling_name: str, place: VerificationPlace
) -> None:
    served, sampling = pipeline(pair, place=place, shares=True), SAMPLINGS[sampling_name]
    system, prompts = pair.prompt(SYSTEM), {}
    for number, start in enumerate((0.0, 0.0, 0.1, 50.0)):
        name = f"s{number}"
        prompts[name] = (*system, *pair.prompt(60 + 7 * number)[-10:])
        served.start(request(prompts[name], sampling, TOKENS, "auto", session=name), start)
    served.run()
    reused = []
    for name, prompt in prompts.items():
        own = outputs_of(served, name)
        assert token_ids(own) == expected(prompt, sampling, TOKENS, "none")
        reused.append(finished(own).counters.reused_rows)
    assert reused[0] == 0
    assert all(shared_pages(machine).saved() >= 3 for machine in (served.draft_node, *served.stages))
    assert min(reused[1:3]) >= SYSTEM - 2 * 32 - 2, "they wait for the first, as long as that is worth it"
    assert reused[3] >= SYSTEM - 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("precision", "strategy"),
    dealt(
        product(["bf16", "bf16-kv8"], ["autoregressive", "flowspec", "auto"]),
        (("bf16", "autoregressive"), ("bf16-kv8", "flowspec")).__contains__,
    ),
)
def test_exact_blocks(pair: Pair, precision: str, strategy: str) -> None:
    """With rows of half the precision, and with a KV cache in 8 bits, reuse changes no token."""
    sampling = SAMPLINGS["T1"]
    computed, none = chat(pair, pipeline(pair, kept_rows=0, **exact(precision)), strategy, sampling)
    reused, some = chat(pair, pipeline(pair, **exact(precision)), strategy, sampling)
    assert reused == computed
    assert [each.reused_rows for each in none] == [0] * TURNS
    assert all(each.reused_rows for each in some[1:])


@pytest.mark.proof
@pytest.mark.parametrize("seed", [1, 2])
def test_without_reliable_express_messages(pair: Pair, seed: int) -> None:
    served = pipeline(pair, express_fault=faulty(seed, 0.2))
    answers, counters = chat(pair, served, "auto", SAMPLINGS["T1"])
    assert answers == wanted_chat(pair, SAMPLINGS["T1"])
    assert all(each.reused_rows for each in counters[1:])


def test_a_request_may_refuse(pair: Pair) -> None:
    served, prompt = pipeline(pair), pair.prompt(60)
    wanted = request(prompt, SamplingParams(), TOKENS, "flowspec", session="a")
    for name, reuses, reused in (("a", True, 0), ("b", False, 0), ("c", True, 59)):
        outputs = served.generate(replace(wanted, session=name, reuses_prefix=reuses))
        assert finished(outputs).counters.reused_rows == reused
        assert token_ids(outputs) == expected(prompt, SamplingParams(), TOKENS, "none")
