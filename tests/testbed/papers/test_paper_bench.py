"""The command that runs a paper's experiments prints the figures of the run above the paper's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowedge.cli.main import run as flowedge
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.papers.declaration import PAPERS, read_paper
from flowedge_testbed.papers.paper_bench import PaperBench
from flowedge_testbed.scenario_parts import ModelSetNames
from tests.testbed.conftest import PROMPTS, results
from tests.testbed.said import Said

if TYPE_CHECKING:
    from flowedge_testbed.model_set import ModelSet

pytestmark = pytest.mark.slow


@pytest.mark.proof
def test_an_experiment_is_printed_above_the_papers_figures(pair: ModelSet, tmp_path: Path) -> None:
    options = BenchOptions(Path(), tmp_path, quick=True, data=tmp_path, processes=1)
    said, loaded = Said(), {ModelSetNames().model_dump_json(): pair}
    report, text = PaperBench(options, said, loaded).run("specpipe/memory")
    assert report == tmp_path / "report.md"
    assert report.read_text(encoding="utf-8") == text
    assert re.search(r"^\| stage 1 \| \d\d\.\d\d \|\n\| \*in the paper\* \| \*23.50\* \|$", text, re.M)
    assert re.search(r"^\| draft node \| \d\.\d\d \|$", text, re.M), "a series may have no published value"
    assert (tmp_path / "memory.png").is_file()
    assert [run["method"] for run in results(tmp_path / "specpipe-figure12")["runs"]] == ["specpipe"]
    assert not (tmp_path / "specpipe-figure12" / "runs").exists(), "scenarios share their runs"
    PaperBench(options, said, loaded).run("specpipe/figure12")
    assert said.begun == [(1, 0), (1, 1)], "figure 12 has the run of the table of memory"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["papers"], "papers needs --paper: flowspec, pipedec, specpipe, pipespec, pipeinfer"),
        (["papers", "--paper", "eagle"], "there is no paper 'eagle'"),
        (["papers", "--paper", "flowspec/table9"], "there is no experiment 'table9'"),
        (["ablation", "--paper", "flowspec"], "--paper flowspec goes with `papers`"),
        (["papers", "--paper", "flowspec", "--save-paths", "p"], "the true paths of a single scenario"),
    ],
)
def test_a_wrong_paper_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flowedge(["bench", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.parametrize("paper", PAPERS)
def test_every_experiment_of_a_paper_has_figures(
    paper: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two prompts in turn stand in for each dataset, since the datasets are not part of the tree."""
    experiments = read_paper(paper).experiments
    for experiment in experiments.values():
        for file in experiment.read_scenario().datasets.values() if experiment.scenario else ():
            (tmp_path / file).write_text(20 * PROMPTS, encoding="utf-8")
    out = tmp_path / "out"
    command = ["bench", "papers", "--paper", paper, "--quick", "--out", str(out), "--data", str(tmp_path)]
    assert flowedge(command) == 0
    parts = capsys.readouterr().out.split("\n## ")[1:]
    assert [part.partition(":")[0] for part in parts] == list(experiments)
    for part, (name, experiment) in zip(parts, experiments.items(), strict=True):
        if experiment.scenario is None:
            assert f"Not run. {experiment.reason}" in part
            continue
        rows = re.findall(r"^\| (?!\*)(.+?) \| (.*) \|$", part, re.M)
        measured = [label for label, cells in rows[2:] if re.search(r"\d", cells)]
        assert measured, f"{name} has no figure"
        assert (out / f"{name}.png").is_file()
