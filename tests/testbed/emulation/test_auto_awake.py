"""`auto` at places that change in mid-answer, beside an `auto` that has known them so from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge_testbed.model_set import ModelSet
from tests.testbed.changing import both_answers, place_of

TOKENS = 192
PLACES = [
    "8b-fp16-2rtx3060-stage-halves",
    "7b-fp16-4nano-30ms-more",
    "7b-fp16-4nano-stage-halves",
    "7b-fp16-4nano-draft-node-halves",
    "70b-int4-16nano-nx-draft-node-halves",
    "8b-int4-1rtx3060-pc-drafts-30ms-more",
    "8b-int4-1rtx3060-pc-drafts-30ms-for-a-while",
    "8b-fp16-2rtx3060-stage-halves-for-a-while",
]


@pytest.mark.proof
@pytest.mark.parametrize("place", PLACES)
def test_auto_goes_on_as_one_that_knew(pair: ModelSet, tmp_path: Path, place: str) -> None:
    found = both_answers(pair, tmp_path, place_of(place), "auto", TOKENS)
    assert 0 < found.token < TOKENS / 2
    assert found.share >= 0.94
