"""The bundled pair, loaded once for the tests of a worker, and small scenarios.

Pytest reads this file in the process that deals tests out too, so fixtures import what needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from flowedge_testbed.model_set import ModelSet
    from tests.testbed.said import Said

SMALL: dict[str, Any] = {
    "name": "small",
    "title": "A small scenario",
    "devices": {"draft_node": "orin-nano-8gb", "stages": {"device": "orin-nano-8gb", "count": 4}},
    "links": {"default": {"profile": "lan-150", "jitter_ms": 0.5}},
    "emulated": [{"model": "llama2-7b"}],
    "strategies": ["autoregressive", "naive_pp", "flowspec"],
    "datasets": {"own": "own.jsonl"},
    "temperatures": [0],
    "samples": 1,
    "max_new_tokens": 12,
    "report": {"plots": ["sweep"]},  # no picture without a sweep; to name none asks for bars and charts
}

ScenarioFile = Callable[..., Path]
"""Writes a scenario: see `scenario_file`."""
Bench = Callable[..., Any]
"""Runs a scenario: see `bench`."""

PROMPTS = (
    '{"turns": ["A box holds 12 eggs. How many eggs are in 5 boxes?"]}\n'
    '{"prompt": "Write a function that adds two numbers."}\n'
)


def results(out: Path) -> dict[str, Any]:
    """Read the results that a benchmark has written to a folder."""
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


@pytest.fixture(scope="session")
def pair() -> ModelSet:
    import torch

    from flowedge_testbed.model_set import ModelSet

    torch.set_num_threads(1)
    return ModelSet.load("bundled", ("bundled",))


@pytest.fixture
def scenario_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small scenario, with some keys replaced, and its prompts; returns the scenario's path."""

    def write(**changes: Any) -> Path:
        (tmp_path / "own.jsonl").write_text(PROMPTS, encoding="utf-8")
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def bench(pair: ModelSet) -> Callable[..., Said]:
    """Runs a scenario in this process, on the bundled pair or with the drafter that is named."""
    from flowedge_testbed.bench.benchmark import run_bench
    from flowedge_testbed.bench.options import BenchOptions
    from tests.testbed.said import Said

    def run(scenario: Path, out: Path, **options: Any) -> Said:
        said = Said()
        loaded = None if "drafter" in options else pair
        run_bench(BenchOptions(scenario=scenario, out=out, processes=1, **options), said, loaded)
        return said

    return run
