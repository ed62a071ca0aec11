"""`flowedge count-tokens` counts what a draft node then proposes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer

LINES = ({"prompt": "Say apples.", "response": "apples and pears"}, {"text": "zebra zebra"})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOWEDGE_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


def stored(state: Path) -> TokenCounts:
    checkpoint = Checkpoint.open("bundled")
    return CountsFile(state, checkpoint.fingerprint, int(checkpoint.config.vocab_size)).read()


def test_the_tokens_of_answers_and_texts_are_counted(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["count-tokens", "bundled", "--data", str(data)]) == 0
    counts, tokenizer = stored(tmp_path / "state"), load_tokenizer(Checkpoint.open("bundled"))
    texts = ("apples and pears", "zebra zebra")
    drawn = [id_ for text in texts for id_ in tokenizer.encode(text, add_special_tokens=False)]
    assert all(counts.counts[id_] >= drawn.count(id_) for id_ in drawn)
    assert counts.total == len(drawn) + 2, "and the ends of both, but nothing of the question"
    assert f"{counts.total} tokens of 2 texts are counted, beside 0 before" in capsys.readouterr().out
    assert run(["count-tokens", "bundled", "--data", str(data)]) == 0
    assert (stored(tmp_path / "state").counts == 2 * counts.counts).all()


def test_a_file_without_examples_changes_nothing(data: Path, tmp_path: Path) -> None:
    data.write_text("")
    assert run(["count-tokens", "bundled", "--data", str(data)]) == 2
    assert stored(tmp_path / "state").total == 0
