"""The runner's processes: tasks spread over them, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowedge_testbed.bench import workers
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.runs import Task
from tests.support.commands import run_command
from tests.support.processes import CLI
from tests.testbed.conftest import Bench, ScenarioFile

pytestmark = pytest.mark.slow


def test_tasks_are_spread_over_processes(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: ModelSet
) -> None:
    """Without starting processes: the pool is given every task, the longest first."""
    given: list[Task] = []

    class Pool:
        def __init__(self, count: int, begin: Any, arguments: Any) -> None:
            assert count == 2
            self.worker = workers.Worker(*arguments, pair)

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def imap_unordered(self, _function: Any, tasks: list[Task]) -> Any:
            given.extend(tasks)
            return map(self.worker.carry_out, tasks)

    monkeypatch.setattr(
        workers.multiprocessing.get_context("spawn").__class__, "Pool", lambda _, *a: Pool(*a)
    )
    from flowedge_testbed.bench.benchmark import run_bench

    scenario = scenario_file(samples=2, strategies=["autoregressive"])
    run_bench(BenchOptions(scenario=scenario, out=tmp_path / "out", processes=2), BenchProgress(), pair)
    assert len(given) == 2


def test_the_command_ends_with_five_lines_and_the_path(scenario_file: ScenarioFile, tmp_path: Path) -> None:
    report = {"tables": ["table1"], "plots": ["bars"]}
    scenario = scenario_file(strategies=["autoregressive", "naive_pp"], max_new_tokens=6, report=report)
    out = tmp_path / "out"
    command = [*CLI, "bench", str(scenario), "--out", str(out)]
    done = run_command([*command, "--processes", "1"], timeout=300, env={**os.environ, "COLUMNS": "60"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out / "report.md")]
    lines = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines[-5:]] == ["Run", "On", "Fastest", "Distrust", "Command"]
    assert lines[-5].startswith("Run: A small scenario: 2 methods, 1 prompt of own, temperature 0")
    assert "2 of 2 runs have ended" in lines
    assert "━" not in done.stderr, "a file has no bar"
    written = (out / "report.md").read_text()
    assert written.index("](bars.png)") < written.index("| Model | Method |"), (
        "the picture is before the tables"
    )


def gone(group: int, timeout_s: float) -> bool:
    """Whether no process of the group is left, within the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.proof
def test_ctrl_c_ends_both_processes_and_the_bench_goes_on(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    # Many runs are left when the first have ended.
    scenario = scenario_file(samples=2, temperatures=[0, 1], noise=["shared"], max_new_tokens=24, repeats=4)
    out = tmp_path / "out"
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    python = ["env", "--default-signal=INT", sys.executable]
    command = [*python, "-m", "flowedge.cli.main", "bench", str(scenario), "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not any((out / "runs").glob("*.json")):
            assert process.poll() is None and time.monotonic() < deadline, "no run has ended"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert gone(process.pid, timeout_s=60), "a process is left behind"
    kept = len(list((out / "runs").glob("*.json")))
    assert not (out / "results.json").exists()
    assert bench(scenario, out).begun == [(48, kept)]
    bench(scenario, tmp_path / "whole")
    whole, resumed = [(tmp_path / name / "results.json").read_bytes() for name in ("whole", "out")]
    assert whole == resumed
