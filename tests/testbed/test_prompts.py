"""Which prompts of a file a scenario uses, and the prompts of a conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.prompts import PromptChoice, read_dataset
from flowedge_testbed.replay.conversations import Conversations
from tests.testbed.conftest import Bench, ScenarioFile, results

LINES = [{"turns": [f"Question {number}?", "And one more?"]} for number in range(4)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    return path


def words(text: str) -> tuple[int, ...]:
    return tuple(map(len, text.split()))


def test_prompts_are_skipped_at_the_beginning(file: Path) -> None:
    found = read_dataset("questions", file, PromptChoice(samples=2, skip=1, turns=2), 100, words)
    assert found.turns == (("Question 1?", "And one more?"), ("Question 2?", "And one more?"))
    assert read_dataset("questions", file, PromptChoice(9), 100, words).turns[0] == ("Question 0?",)
    with pytest.raises(BadRequestError, match="has 4 prompts, and skip is 4: none is left"):
        read_dataset("questions", file, PromptChoice(samples=2, skip=4), 100, words)


@pytest.mark.slow
def test_a_turn_holds_the_answer_to_the_turn_before_it(pair: ModelSet, file: Path, tmp_path: Path) -> None:
    dataset = read_dataset("questions", file, PromptChoice(1, turns=2), 100, pair.encode)
    sampling = SamplingParams(seed=3)
    first, second = Conversations(pair, tmp_path, 6).prompts(dataset, 0, sampling)
    assert first == pair.encode("Question 0?")
    path = pair.path_source(tmp_path).path(first, sampling, 6, pair.eos)
    answer = pair.tokenizer.decode(path.tokens[len(first) :], skip_special_tokens=True)
    text = pair.tokenizer.decode(second)
    assert answer in text and text.index(answer) < text.index("And one more?")
    # A turn for which there is no room ends the conversation.
    room = pair.facts.max_positions - len(second) + 1
    assert len(Conversations(pair, tmp_path, room).prompts(dataset, 0, sampling)) == 1


@pytest.mark.slow
def test_every_method_is_asked_all_turns(
    scenario_file: ScenarioFile, bench: Bench, file: Path, tmp_path: Path
) -> None:
    changes = {"datasets": {"own": file.name}, "turns": 2, "strategies": ["naive_pp", "autoregressive"]}
    said = bench(scenario_file(**changes, max_new_tokens=6), tmp_path / "out")
    assert said.begun == [(4, 0)]
    found = results(tmp_path / "out")
    assert [run["requests"] for run in found["runs"]] == [2, 2]
    assert found["outputs_differ"] == []
    assert "up to 2 turns each" in (tmp_path / "out" / "report.md").read_text()
    with pytest.raises(BadRequestError, match="one turn"):
        bench(scenario_file(**changes, load={"clients": [1]}), tmp_path / "load")
