"""The fit of a quantised model is that of transformers' own forward over the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flowedge.core.errors import BadRequestError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from testbed.tools.models.perplexity import REFERENCE, Answered, held_out, lines, measure
from testbed.tools.models.texts.corpus import ChatPair


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open("bundled")


@pytest.fixture(scope="module")
def texts(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> list[Answered]:
    data = tmp_path_factory.mktemp("data")
    pairs = [{"prompt": f"How much is {n} + 1?", "response": f"It is {n + 1}."} for n in range(200)]
    (data / "sums.jsonl").write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    return held_out(checkpoint, data, 3, 64)


def test_only_held_out_answers_are_measured(checkpoint: Checkpoint, texts: list[Answered]) -> None:
    assert len(texts) == 3
    held = [n for n in range(200) if ChatPair(f"How much is {n} + 1?", "", "sums").held_out]
    assert len(held) < 20


def test_the_fit_is_that_of_the_plain_model(checkpoint: Checkpoint, texts: list[Answered]) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32)
    expected = []
    with torch.no_grad():
        for text in texts:
            logits = model(torch.tensor([text.ids])).logits[0].double().log_softmax(-1)
            expected += [-float(logits[at - 1, text.ids[at]]) for at in range(text.start, len(text.ids))]
    plain = measure(checkpoint, REFERENCE, texts, "float32")
    assert plain.nats == pytest.approx(np.array(expected), abs=1e-4)


def test_four_bits_cost_more_than_none(checkpoint: Checkpoint, texts: list[Answered]) -> None:
    fits = {form: measure(checkpoint, form, texts, "float32") for form in (REFERENCE, "int4")}
    plain, four = lines(fits)
    assert plain[0] == REFERENCE and plain[3:] == ["", ""]
    assert abs(float(four[1]) - float(plain[1])) > 0
    assert "±" in four[3]


def test_a_folder_without_held_out_pairs_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="no held-out pair of at most 64 tokens"):
        held_out(checkpoint, tmp_path, 3, 64)
