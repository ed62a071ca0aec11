"""docs/expect.md has the predictions that its command computes."""

from __future__ import annotations

import pytest

from flowedge_testbed.model_set import ModelSet
from testbed.tools.documents.expect import BEGIN, BOARDS, DOCUMENT, END, MODELS, row


@pytest.fixture(scope="module")
def models() -> ModelSet:
    return ModelSet.load("bundled", ("bundled",))


@pytest.mark.parametrize(
    ("model", "board", "fits"),
    [("llama3.2-1b", "orin-nano-8gb", True), ("llama3.1-8b", "raspberry-pi-5", False)],
)
def test_the_document_has_what_the_command_computes(
    models: ModelSet, model: str, board: str, fits: bool
) -> None:
    shown = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown.count("\n| ") == 2 + len(MODELS) * len(BOARDS)
    described = [each for each in MODELS if each[1] == model][-1]  # in 16 or 32 bits
    place = next(each for each in BOARDS if each.profile == board)
    computed = row(models, place, *described)
    assert (computed[4] != "does not fit") is fits
    assert "| " + " | ".join(computed) + " |" in shown
