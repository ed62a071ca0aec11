"""The reference: its draws, its judgement, its tolerance, and its refusal to fill the memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.gumbel_noise import gumbel_noise
from flowedge.core.sampling import SamplingParams
from flowedge.device.memory import AvailableMemory
from flowedge.models.check.judging import gap_behind
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.sampling.token_sampler import TokenSampler
from tests.models.conftest import VOCAB, Make
from tests.models.pipeline import Pipeline

PROMPT = [5, 17, 80, 3, 41]
GREEDY = SamplingParams()
SAMPLED = [
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1.0, top_k=8, seed=2),
    SamplingParams(temperature=1.3, top_p=0.8, seed=3),
    SamplingParams(temperature=1.0, top_k=30, top_p=0.9, seed=2**62),
]


@pytest.fixture(scope="module")
def reference(directory: Path) -> ReferenceModel:
    return ReferenceModel.load(str(directory))


def draw(logits: np.ndarray, position: int, sampling: SamplingParams) -> int:
    """The rule of the draw, written out anew."""
    logits = logits.astype(np.float64)
    if sampling.temperature == 0:
        return int(logits.argmax())
    scaled = logits / sampling.temperature
    if sampling.top_k:
        scaled[scaled < np.sort(scaled)[-sampling.top_k]] = -np.inf
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    above = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[above >= sampling.top_p]] = 0
    with np.errstate(divide="ignore"):
        return int((np.log(probabilities) + gumbel_noise(sampling.seed, position, VOCAB)).argmax())


@pytest.mark.parametrize("sampling", [GREEDY, *SAMPLED])
def test_blocks_drawing_by_the_rule_give_what_generate_gives(
    directory: Path, reference: ReferenceModel, sampling: SamplingParams
) -> None:
    pipeline = Pipeline(Checkpoint.open(str(directory)), 2)
    tokens: list[int] = []
    logits = pipeline.commit(PROMPT)[-1]
    for _ in range(40):
        position = len(PROMPT) + len(tokens)
        tokens.append(draw(logits.numpy(), position, sampling))
        assert TokenSampler(sampling, VOCAB).draw(logits, position) == tokens[-1]
        logits = pipeline.commit(tokens[-1:])[-1]
    output = reference.generate(PROMPT, sampling, 40)
    assert output.token_ids == tokens
    assert len(output.margins) == 40 and min(output.margins) > 0
    judgement = reference.judge(PROMPT, tokens, sampling, 1e-4)
    assert judgement.passed and judgement.checked == 40 and not judgement.ties
    assert judgement.max_gap == 0


def test_end_tokens_stop_generation(reference: ReferenceModel) -> None:
    free = reference.generate(PROMPT, SAMPLED[0], 30).token_ids
    stop = free[10]
    assert reference.generate(PROMPT, SAMPLED[0], 30, {stop, 96}).token_ids == (free[: free.index(stop) + 1])


def test_the_seed_and_the_position_alone_change_the_noise(reference: ReferenceModel) -> None:
    tokens = reference.generate(PROMPT, SAMPLED[0], 20).token_ids
    rest = reference.generate([*PROMPT, *tokens[:7]], SAMPLED[0], 13).token_ids
    assert tokens[7:] == rest
    other = SamplingParams(temperature=0.7, seed=99)
    assert reference.generate(PROMPT, other, 20).token_ids != tokens


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[0]])
def test_a_wrong_token_fails_at_its_position(reference: ReferenceModel, sampling: SamplingParams) -> None:
    tokens = reference.generate(PROMPT, sampling, 20).token_ids
    wrong = [*tokens[:12], (tokens[12] + 1) % VOCAB, *tokens[13:]]
    judgement = reference.judge(PROMPT, wrong, sampling, 1e-4)
    assert not judgement.passed and judgement.failure is not None
    assert judgement.failure.position == len(PROMPT) + 12
    assert (judgement.failure.ours, judgement.failure.reference) == (wrong[12], tokens[12])
    assert judgement.failure.gap > 1e-4 and judgement.max_gap == judgement.failure.gap


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED[0], SAMPLED[3]])
def test_a_runner_up_within_the_tolerance_is_a_tie_and_checking_goes_on(
    reference: ReferenceModel, sampling: SamplingParams
) -> None:
    output = reference.generate(PROMPT, sampling, 30)
    at = int(np.argmin(output.margins))
    units = sampling.temperature or 1.0
    margin = output.margins[at] * units
    second: dict[str, int] = {}
    for token in range(VOCAB):  # find the runner-up as judge sees it
        found = reference.judge([*PROMPT, *output.token_ids[:at]], [token], sampling, margin * 1.001)
        if found.passed and token != output.token_ids[at]:
            second["token"] = token
            assert found.ties[0].gap == pytest.approx(margin, rel=1e-3)
    ours = [*output.token_ids[:at], second["token"]]
    rest = reference.generate([*PROMPT, *ours], sampling, 10).token_ids
    judgement = reference.judge(PROMPT, [*ours, *rest], sampling, margin * 1.001)
    assert judgement.passed and judgement.checked == at + 11
    assert [tie.position for tie in judgement.ties] == [len(PROMPT) + at]
    assert not reference.judge(PROMPT, [*ours, *rest], sampling, margin * 0.999).passed


def test_a_token_that_truncation_excludes_for_sure_is_never_a_tie() -> None:
    logits = np.array([3.0, 2.0, 1.0, -4.0])
    top_two = SamplingParams(temperature=1.0, top_k=2, seed=0)
    assert gap_behind(logits, 2, 0, position=9, sampling=top_two, tolerance=0.5) == math.inf
    nucleus = SamplingParams(temperature=1.0, top_p=0.5, seed=0)
    assert gap_behind(logits, 3, 0, position=9, sampling=nucleus, tolerance=0.5) == math.inf


def test_a_token_at_the_edge_of_truncation_counts_as_inside() -> None:
    logits = np.array([3.0, 2.0 + 1e-6, 2.0, -4.0])
    top_two = SamplingParams(temperature=1.0, top_k=2, seed=0)
    noise = gumbel_noise(0, 9, 4)
    gap = gap_behind(logits, 2, 1, position=9, sampling=top_two, tolerance=1e-5)
    assert gap == pytest.approx(max(0.0, logits[0] + noise[0] - 2.0 - noise[2]))
    assert gap_behind(logits, 2, 1, position=9, sampling=top_two, tolerance=1e-7) == math.inf
    # The first two hold 0.73 of the mass; the edge of the nucleus is there.
    flat = np.log(np.array([0.43, 0.3, 0.17, 0.1]))
    for top_p, inside in [(0.7301, True), (0.7299, True), (0.72, False)]:
        sampling = SamplingParams(temperature=1.0, top_p=top_p, seed=0)
        gap = gap_behind(flat, 2, 0, position=9, sampling=sampling, tolerance=1e-3)
        assert math.isfinite(gap) == inside


def test_the_tolerance_of_float32_is_small(reference: ReferenceModel) -> None:
    text = np.random.default_rng(0).integers(0, VOCAB, 70).tolist()
    tolerance = reference.measure_tolerance(text)
    assert tolerance.tokens == 70
    assert 0 < tolerance.max_logit_difference < 1e-4
    assert tolerance.value == 2 * tolerance.max_logit_difference
    with pytest.raises(BadRequestError, match="two tokens"):
        reference.measure_tolerance([1])


def test_the_tolerance_of_bfloat16_is_measured_not_assumed(directory: Path) -> None:
    model = ReferenceModel.load(str(directory), dtype=torch.bfloat16)
    text = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    assert model.measure_tolerance(text).max_logit_difference > 1e-3


def test_an_empty_prompt_is_refused(reference: ReferenceModel) -> None:
    with pytest.raises(BadRequestError, match="no tokens"):
        reference.generate([], GREEDY, 5)


def test_the_checkpoint_s_generation_defaults_do_not_matter(make_checkpoint: Make) -> None:
    directory = make_checkpoint()
    plain = ReferenceModel.load(str(directory)).generate(PROMPT, GREEDY, 20).token_ids
    (directory / "generation_config.json").write_text(
        f'{{"repetition_penalty": 5.0, "do_sample": true, "temperature": 0.3, "eos_token_id": {plain[3]}}}'
    )
    assert ReferenceModel.load(str(directory)).generate(PROMPT, GREEDY, 20).token_ids == plain


def test_a_model_that_does_not_fit_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.open(str(directory))
    assert ReferenceModel.required_bytes(checkpoint) == checkpoint.tensor_bytes(checkpoint.names)
    room = AvailableMemory(2**30, 2**10, "")
    monkeypatch.setattr("flowedge.models.check.reference.read_available_memory", lambda: room)
    with pytest.raises(CapacityError, match=r"fit on cpu: layers 0\.0006 GiB \+ .*, and 0\.0000 GiB are"):
        ReferenceModel.load(str(directory))
