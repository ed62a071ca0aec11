"""The search for auto's parameters: along lines, on replayed prompts, validated on others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from flowedge.core.errors import BadRequestError
from flowedge.strategies.settings import AutoSettings
from flowedge_testbed.model_set import ModelSet
from testbed.tools import tune_auto
from testbed.tools.tune_auto import (
    PLACES,
    TUNABLE,
    Prompts,
    Values,
    line_search,
    lines,
    outcome,
    parse_space,
    tune,
)
from tests.testbed.conftest import PROMPTS

pytestmark = pytest.mark.xdist_group("bench")


def test_a_line_search_climbs_until_nothing_changes() -> None:
    def score(many: Sequence[Values]) -> list[float]:
        return [-((values["x"] - 3) ** 2) - (values["y"] - values["x"]) ** 2 / 2 for values in many]

    start = {"x": 0.0, "y": 0.0}
    steps = [*line_search({"x": (1, 2, 3), "y": (0, 1, 2, 3)}, start, score, rounds=9)]
    assert outcome(start, steps) == {"x": 3, "y": 3}
    assert [(step.parameter, step.chosen) for step in steps] == [
        ("x", 2),
        ("y", 2),
        ("x", 3),
        ("y", 3),
        ("x", 3),
        ("y", 3),
    ], "and a last round that changes nothing"
    assert steps[0].scores == {0: -9, 1: -4.5, 2: -3, 3: -4.5}
    assert len([*line_search({"x": (1, 2)}, start, score, rounds=1)]) == 1
    (flat,) = line_search({"x": (1, 2)}, start, lambda many: [1.0 for _ in many], rounds=1)
    assert flat.chosen == 0, "nothing is better"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["depth=3"], "depth is not to be tuned; row_price"),
        (["prior=0"], "prior is 0"),
        (["candidates=2.5"], "whole number"),
        (["prior=many"], "separated by commas"),
    ],
)
def test_what_cannot_be_tuned_is_refused(given: list[str], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        parse_space(given)
    assert parse_space([]) == TUNABLE
    assert parse_space(["prior", "row_price=1,2"]) == {"prior": TUNABLE["prior"], "row_price": (1.0, 2.0)}


@pytest.fixture
def short_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario that prompts are run in, with answers of 40 tokens."""
    scenario = yaml.safe_load(tune_auto.SCENARIO.read_text(encoding="utf-8"))
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({**scenario, "max_new_tokens": 40}), encoding="utf-8")
    monkeypatch.setattr(tune_auto, "SCENARIO", file)


@pytest.mark.proof
@pytest.mark.usefixtures("short_answers")
def test_the_best_value_is_kept_and_validated_on_other_prompts(pair: ModelSet, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(PROMPTS, encoding="utf-8")
    prompts = Prompts(pair, ["own"], tmp_path, 1, tmp_path, PLACES[1:2])
    default = AutoSettings().segment_rows
    found = tune(prompts, {"segment_rows": (1, default)}, rounds=1)
    (step,) = found["steps"]
    assert step["scores"]["1"] < step["scores"][str(default)]
    assert found["tuned"] == {"segment_rows": default} == found["defaults"]
    checked = found["validation"]
    assert checked["gain"] == 0
    assert checked["defaults_tokens_per_s"] not in step["scores"].values(), "other prompts"
    assert "no better: keep the defaults" in lines(found)[-1]
    with pytest.raises(BadRequestError, match="own has 2 prompts that fit, and 4 are needed"):
        Prompts(pair, ["own"], tmp_path, 2, tmp_path, PLACES)
