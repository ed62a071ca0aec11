"""top_p and top_k of a scenario: they reach the draws of every method, and wrong values are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge_testbed.scenario import Scenario
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results


@pytest.mark.slow
def test_the_likeliest_token_alone_is_the_greedy_answer(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    """At temperature 1 with top_k 1 all methods put out what they put out at temperature 0."""
    scenario = scenario_file(temperatures=[0, 1], top_k=1, noise=["shared"], max_new_tokens=8)
    bench(scenario, tmp_path / "out")
    found = results(tmp_path / "out")
    records = [json.loads(file.read_text()) for file in (tmp_path / "out" / "runs").glob("*.json")]
    assert len(records) == 6
    assert len({record["output"] for record in records}) == 1
    assert (found["settings"]["top_k"], found["settings"]["top_p"]) == (1, 1)
    assert "temperature 0 and 1, top-k 1, at most" in (tmp_path / "out" / "report.md").read_text()


def test_filters_are_of_draws_above_temperature_0() -> None:
    scenario = Scenario.checked({**SMALL, "top_p": 0.9, "top_k": 80}, "a test")
    warm, greedy = scenario.sampling(0.6, 7), scenario.sampling(0, 7)
    assert (warm.temperature, warm.top_p, warm.top_k, warm.seed) == (0.6, 0.9, 80, 7)
    assert (greedy.top_p, greedy.top_k, greedy.seed) == (1, 0, 7), "greedy paths are shared"


@pytest.mark.parametrize("changes", [{"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"top_k": 2.5}])
def test_filters_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(BadRequestError, match=f"a test: key {name}"):
        Scenario.checked({**SMALL, **changes}, "a test")
