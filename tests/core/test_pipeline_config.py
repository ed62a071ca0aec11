"""The settings of a pipeline: their values, how they travel, and which pipeline meets them."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, MAX_PATH, PipelineConfig, faster_sampler


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"verification": "here"}, "verification is 'here': input should be 'auto', 'draft-node'"),
        ({"draft_quant": "nf4"}, "draft_quant is 'nf4'"),
        ({"draft_vocabulary": 0}, "draft_vocabulary: 0 is no number of tokens; it must be auto, all or"),
        ({"draft_vocabulary": "-3"}, "draft_vocabulary: '-3' is no number"),
        ({"draft_vocabulary": True}, "draft_vocabulary: true is no number"),
        ({"drafter": ("a", "a")}, "the drafter a is not joined with itself"),
        ({"answer_store": -1}, "answer_store is -1"),
        ({"answer_store": 9, "drafter": "bundled"}, "^answer_store .* the drafter is bundled; name ngram"),
        ({"split": (3, 0)}, "split: the split 3,0 leaves a stage without a layer"),
        ({"model": ""}, "model is ''"),
        ({"tokenizer": "x" * (MAX_PATH + 1)}, "at most 1024 characters"),
        ({"dtyp": "float32"}, "dtyp is 'float32': extra inputs are not permitted"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=message) as caught:
        PipelineConfig(**given)
    assert len(str(caught.value)) < 400


def test_a_number_of_tokens_may_be_text() -> None:
    assert PipelineConfig().changed(draft_vocabulary="1000").draft_vocabulary == 1000


def test_settings_arrive_as_they_were_sent() -> None:
    sent = PipelineConfig(model="/m", drafter=("a", "b"), split=(3, 5), draft_vocabulary=9, exact="on")
    assert PipelineConfig.from_json(sent.to_json()) == sent


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"kv": 1}', '{"magic": 1}', "[" * 50_000])
def test_what_is_no_settings_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"^the settings of a pipeline: ") as caught:
        PipelineConfig.from_json(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({}, True),
        ({"dtype": "bfloat16", "exact": "on", "split": (4, 4), "verification": "last-stage"}, True),
        ({"drafter": "none"}, True),
        ({"dtype": "float32"}, False),
        ({"exact": "off"}, False),
        ({"split": (3, 5)}, False),
        ({"kv": "int8"}, False),
        ({"quant": "int8"}, False),
        ({"model": "other"}, False),
        ({"drafter": "ngram"}, False),
        ({"answer_store": 9}, False),
        ({"tokenizer": "other"}, False),
    ],
)
def test_what_is_left_open_fits_any_choice(asked: dict[str, Any], there: bool) -> None:
    present = PipelineConfig(
        drafter=(), draft_quant="none", dtype="bfloat16", exact="on", verification="last-stage", split=(4, 4)
    )
    assert PipelineConfig(**asked).is_met_by(present) is there


def test_a_pipeline_that_moves_layers_at_once_serves_those_who_do_not_ask_for_it() -> None:
    assert PipelineConfig().is_met_by(PipelineConfig(rebalance="auto"))
    assert not PipelineConfig(rebalance="auto").is_met_by(PipelineConfig())


def test_the_place_with_the_least_time_is_taken() -> None:
    assert faster_sampler(0.1, 0.02, 0.0) == LAST_STAGE
    assert faster_sampler(0.02, 0.1, 0.0) == DRAFT_NODE
    assert faster_sampler(0.02, 0.02, 0.0) == LAST_STAGE, "drafting waits for a draft node that verifies"
    assert faster_sampler(0.02, 0.035, 0.0) == DRAFT_NODE
    assert faster_sampler(0.02, 0.035, 0.01) == LAST_STAGE, "the link is spared"
