"""PipeSpec's output is the plain model's for all kinds of middle models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flowedge.core.sampling import SamplingParams
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.strategies.published.naive_pp import NaivePP
from tests.drafting.conftest import save_small_lm
from tests.equality.conftest import Pair, expected, finished, request, token_ids
from tests.support.truncated import first_layers

SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, seed=14)}
SPLITS = {1: [8], 4: [2, 2, 2, 2]}
NEW_TOKENS = 10
PROMPT_TOKENS = 24
COSTS = FixedCosts(stage_s=0.03, side_s=0.02)


class Contrary(LanguageModel):
    """A model that predicts a fixed wrong token at every third position."""

    def predict(self, hidden, positions):
        predicted = super().predict(hidden, positions)
        predicted[positions % 3 == 0] = 7
        return predicted


@pytest.fixture(scope="session")
def middles(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageModel]:
    """Middle models by kind: random weights, the first layers of the target, the target, and Contrary."""

    def load(directory: Path, kind: type[LanguageModel] = LanguageModel) -> LanguageModel:
        return kind.load(Checkpoint(directory), pair.head.vocab_size, torch.float32)

    cut = first_layers(tmp_path_factory.mktemp("middle"), 2)
    return {
        "random": load(save_small_lm(tmp_path_factory.mktemp("small"))),
        "cut": load(cut),
        "target": load(pair.checkpoint.directory),
        "contrary": load(cut, Contrary),
    }


def pipeline(pair: Pair, stages: int, middles: list[LanguageModel], fault=None, costs=COSTS, parts=1):
    """parts: of each middle model's two layers."""
    sides = [middle.parts([(0, 1), (1, 2)][:parts]) for middle in middles]
    return pair.pipeline(SPLITS[stages], costs=costs, side_models=sides, express_fault=fault)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("stages", "names", "sampling_name"),
    [
        (1, "", "T0"),
        (4, "", "T1"),
        (1, "cut", "T1"),
        (4, "random", "T0"),
        (1, "contrary", "T0"),
        (4, "contrary", "T1"),
        (1, "random+cut", "T1"),
        (4, "cut+target", "T0"),
        (4, "cut+target", "T1"),
    ],
)
def test_whatever_the_models_between_predict(
    pair: Pair, middles: dict[str, LanguageModel], stages: int, names: str, sampling_name: str
) -> None:
    prompt, sampling, between = pair.prompt(PROMPT_TOKENS), SAMPLINGS[sampling_name], names.split("+")
    between = between if names else []
    run = pipeline(pair, stages, [middles[name] for name in between])
    outputs = run.generate(request(prompt, sampling, NEW_TOKENS, "pipespec"))
    assert token_ids(outputs) == expected(prompt, sampling, NEW_TOKENS, "none")
    end = finished(outputs)
    rollbacks = end.counters.rollbacks
    assert len(rollbacks) == len(between) + 1
    assert [report.device for report in end.side_reports] == ["m1", "m2"][: len(between)]
    assert all(report.rows_computed >= len(prompt) for report in end.side_reports)
    assert sum(rollbacks) > 0
    if between[-1:] == ["target"] and sampling.greedy:
        assert rollbacks[-1] == 0, "what the target's twin has accepted is never rejected"
    if "contrary" in between:
        assert min(rollbacks) >= 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("stages", "names", "sampling_name", "strategy", "options"),
    [
        (4, "contrary", "T1", "pipespec_sync", {"lookahead": 3}),
        (1, "random+cut", "T0", "pipespec_sync", {}),
        (1, "contrary", "T1", "pipespec", {"lookahead": 4, "batches": 1}),
    ],
)
def test_whenever_a_model_begins(
    pair: Pair,
    middles: dict[str, LanguageModel],
    stages: int,
    names: str,
    sampling_name: str,
    strategy: str,
    options: dict[str, float],
) -> None:
    prompt, sampling = pair.prompt(PROMPT_TOKENS), SAMPLINGS[sampling_name]
    between = [middles[name] for name in names.split("+")]
    asked = replace(request(prompt, sampling, NEW_TOKENS, strategy), strategy_options=options)
    outputs = pipeline(pair, stages, between).generate(asked)
    assert token_ids(outputs) == expected(prompt, sampling, NEW_TOKENS, "none")
    end = finished(outputs)
    assert all(report.rows_computed >= len(prompt) for report in end.side_reports)
    assert [len(end.counters.verifiers), len(end.side_reports)] == [len(between) + 1, len(between)]
    # Of these seeds no last round accepts drafts beyond the limit of tokens, which would count here as well.
    assert end.counters.verifiers[-1].tokens == NEW_TOKENS - 1, "the target's buffer is what was put out"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("strategy", "sampling_name"), [("pipespec", "T1"), ("pipespec_sync", "T0")])
def test_a_middle_model_divided_over_devices(
    pair: Pair, middles: dict[str, LanguageModel], strategy: str, sampling_name: str
) -> None:
    prompt, sampling = pair.prompt(PROMPT_TOKENS), SAMPLINGS[sampling_name]
    run = pipeline(pair, 1, [middles["random"], middles["cut"]], parts=2)
    outputs = run.generate(request(prompt, sampling, NEW_TOKENS, strategy))
    assert token_ids(outputs) == expected(prompt, sampling, NEW_TOKENS, "none")
    reports = finished(outputs).side_reports
    assert [report.device for report in reports] == ["m1", "m2", "m3", "m4"]
    assert all(report.rows_computed >= len(prompt) for report in reports)
    whole = pipeline(pair, 1, [middles["random"], middles["cut"]])
    counted = finished(whole.generate(request(prompt, sampling, NEW_TOKENS, "pipespec_sync"))).counters
    if strategy == "pipespec_sync":  # of which the time of a device decides nothing
        assert finished(outputs).counters.verifiers == counted.verifiers, "it predicts what the whole does"


def test_without_the_express_lane(pair: Pair, middles: dict[str, LanguageModel]) -> None:
    prompt, sampling = pair.prompt(PROMPT_TOKENS), SAMPLINGS["T1"]
    run = pipeline(pair, 4, [middles["random"], middles["cut"]], fault=lambda _place, _message: None)
    outputs = run.generate(request(prompt, sampling, NEW_TOKENS, "pipespec"))
    assert token_ids(outputs) == expected(prompt, sampling, NEW_TOKENS, "none")


def test_other_strategies_leave_middle_models_alone(pair: Pair, middles: dict[str, LanguageModel]) -> None:
    prompt, sampling = pair.prompt(PROMPT_TOKENS), SAMPLINGS["T1"]
    run = pipeline(pair, 1, [middles["cut"]])
    outputs = run.generate(request(prompt, sampling, 8, NaivePP.name))
    assert token_ids(outputs) == expected(prompt, sampling, 8, "none")
    assert finished(outputs).side_reports == ()


def test_prompts_in_many_chunks_and_a_full_stop(pair: Pair, middles: dict[str, LanguageModel]) -> None:
    """A slow middle model still reads the prompt while the target decodes already."""
    prompt, sampling = pair.prompt(200), SAMPLINGS["T0"]
    run = pipeline(pair, 1, [middles["cut"]], costs=FixedCosts(side_s=0.5))
    outputs = run.generate(request(prompt, sampling, 6, "pipespec"))
    assert token_ids(outputs) == expected(prompt, sampling, 6, "none")
    assert run.draft_node.load().sessions == 0
    assert all(middle.load().sessions == 0 for middle in run.side_stages)
