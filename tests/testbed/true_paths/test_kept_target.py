"""Benchmarks whose target is a file of true paths: the same figures, and misfits named on both sides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flowedge.cli.prompts import read_prompt_lines
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.drafting.choice import BUNDLED_FOLDERS
from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.profiles.library import true_paths
from flowedge_testbed.prompts import OWN_FILE
from flowedge_testbed.scenario import find_scenario, read_scenario
from flowedge_testbed.true_paths.path_file import PathFile
from flowedge_testbed.true_paths.path_store import PathStore
from tests.support.truncated import BUNDLED_MODEL, first_layers
from tests.testbed.conftest import Bench, ScenarioFile, results
from tests.testbed.said import Said

pytestmark = pytest.mark.slow


def saved(bench: Bench, scenario: Path, out: Path, drafter: str) -> Path:
    """Run a scenario, and save its true paths."""
    bench(scenario, out, drafter=(drafter,), save_paths=out / "paths.safetensors")
    return out / "paths.safetensors"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("drafter", ["bundled-small", "bundled"])
def test_a_file_gives_the_figures_of_its_model(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = scenario_file(
        temperatures=[0, 1], noise=["plain"], strategies=["autoregressive", "flowspec"], turns=2
    )
    (tmp_path / "own.jsonl").write_text('{"turns": ["Tell me a story.", "And how does it end?"]}')
    file = saved(bench, scenario, tmp_path / "model", drafter)
    with monkeypatch.context() as without_layers:
        without_layers.setattr(PathStore, "_whole", lambda _: pytest.fail("the target's layers are loaded"))
        bench(scenario, tmp_path / "file", drafter=(drafter,), paths=str(file))
    model, kept = results(tmp_path / "model"), results(tmp_path / "file")
    assert model["runs"] == kept["runs"]
    assert "paths" in kept["pair"]
    assert kept["pair"]["model"] == model["pair"]["model"]
    assert "read from paths.safetensors" in (tmp_path / "file" / "report.md").read_text()
    assert ModelSet.load("bundled", (drafter,), paths=str(file)).target is None or drafter == "bundled"


def test_paths_are_for_replay_alone(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    scenario = scenario_file(pair={"paths": "anything", "drafter": "ngram"})
    refusals = {"virtual": "the virtual clock computes; use --clock replay", "replay": "'anything'"}
    for clock, said in refusals.items():
        with pytest.raises(BadRequestError, match=said):
            run_bench(BenchOptions(scenario=scenario, out=tmp_path / "out", clock=clock), Said())


def test_models_that_do_not_fit_each_other_are_named(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    file = str(saved(bench, scenario_file(strategies=["autoregressive"]), tmp_path / "out", "ngram"))
    other = first_layers(tmp_path / "other", 2)
    with pytest.raises(BadRequestError, match=r"true paths of bundled .* --model .*other is another model"):
        ModelSet.load(str(other), ("ngram",), paths=file)
    with pytest.raises(BadRequestError, match="holds no hidden states, and drafter bundled reads"):
        ModelSet.load("bundled", ("bundled",), paths=file)
    foreign = with_other_tokenizer(tmp_path / "foreign")
    for paths, target in ((file, "the target bundled"), (None, str(BUNDLED_MODEL))):
        with pytest.raises(CheckpointError, match=rf"drafter .*foreign has another tokenizer than {target}"):
            ModelSet.load("bundled", (str(foreign),), paths=paths)
        with pytest.raises(
            CheckpointError, match=r"middle model .*foreign has another tokenizer than the target bundled"
        ):
            ModelSet.load("bundled", ("ngram",), [str(foreign)], paths=paths)
    wide = tmp_path / "wide"
    shutil.copytree(BUNDLED_MODEL.parent / BUNDLED_FOLDERS["bundled"], wide)
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps({**config, "vocab_size": 8192}))
    with pytest.raises(
        CheckpointError, match=rf"drafter .*wide is for a model .* 8192 tokens, {BUNDLED_MODEL}"
    ):
        ModelSet.load("bundled", (str(wide),))


def with_other_tokenizer(directory: Path) -> Path:
    """A copy of the bundled model in which two tokens have changed places."""
    shutil.copytree(BUNDLED_MODEL, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (
        next(token for token, id_ in vocabulary.items() if id_ == wanted) for wanted in (300, 400)
    )
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def test_agents_choose_their_own_dtype(scenario_file: ScenarioFile) -> None:
    with pytest.raises(BadRequestError, match="on the paced clock agents compute"):
        read_scenario(scenario_file(pair={"dtype": "float16"}, clock="paced"))


def test_the_shipped_file_has_the_projects_own_prompts(bench: Bench, tmp_path: Path) -> None:
    options = {"quick": True, "drafter": ("ngram",), "strategies": ("autoregressive", "naive_pp")}
    bench(find_scenario("real-model"), tmp_path, **options)
    found = results(tmp_path)
    assert found["outputs_differ"] == []
    assert {entry["requests"] for entry in found["runs"]} == {2}
    assert "tokens by gemma-3-270m-q4_k_m.gguf" in (tmp_path / "report.md").read_text()
    whole = PathFile.read(true_paths("gemma3-270m")).header
    assert len({path.prompt for path in whole.paths}) == len(read_prompt_lines(OWN_FILE))


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadRequestError, match=r"--device cuda: torch .* finds no GPU here"):
        ModelSet.load("bundled", ("ngram",), device="cuda")
