"""The tool that counts different tokens: each device has its own results, and finished runs stay."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.tools.exact import runs as exact_runs
from testbed.tools.exact.runs import ResultKind
from testbed.tools.on_gpu import steps

OLD = {"precision": "bf16", "exact": True, "prompt": 0, "sampling": "T0", "answer": 8}  # without a device
ON_GPU = {**OLD, "device": "cuda:0", "graphs": True}
ON_CPU = {**OLD, "device": "cpu", "graphs": False}


def write(path: Path, *results: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps({"strategy": "auto", **result}) + "\n" for result in results))


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The report of a call, whose runs must all be in the results already."""
    monkeypatch.setattr(exact_runs, "ExactRuns", lambda _: pytest.fail("a finished run was repeated"))
    monkeypatch.setattr(sys, "argv", ["exact_runs", "--precision", "bf16", *arguments])
    with pytest.raises(SystemExit) as ended:
        exact_runs.main()
    return f"{ended.value.code:d} {capsys.readouterr().out}"


def test_devices_are_counted_apart() -> None:
    results = [OLD, ON_CPU, ON_GPU]
    assert ResultKind("bf16", exact=True, device="cpu", graphs=False).of(results) == [OLD, ON_CPU]
    assert ResultKind("bf16", exact=True, device="cuda:0", graphs=True).of(results) == [ON_GPU]
    assert ResultKind("bf16", exact=True, device="cuda:0", graphs=False).of(results) == []


def test_finished_runs_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    write(path, {**OLD, "tokens": 40, "differences": 0}, {**ON_GPU, "tokens": 7, "differences": 2})
    printed = call(monkeypatch, capsys, "--tokens", "40", "--results", str(path))
    assert printed.startswith("0 ")
    assert "| bf16 | exact | cpu | 40 | 0 | 0 | 0 |" in printed
    assert "| bf16 | exact | cuda:0, graphs | 7 | 2 | 0 | 0 |" in printed


def test_a_token_that_differs_fails_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    write(path, {**ON_CPU, "tokens": 40, "differences": 1})
    assert call(monkeypatch, capsys, "--tokens", "40", "--results", str(path)).startswith("1 ")


def test_exact_steps_run_on_the_device_and_share_their_results(tmp_path: Path) -> None:
    found = [
        step.arguments
        for step in steps("cuda:1", tmp_path, tmp_path / "model", (), 20_000)
        if step.arguments[0] == "testbed.tools.exact.runs"
    ]
    assert len(found) == 4
    for arguments in found:
        options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        assert options["--device"] == "cuda:1"
        assert options["--results"] == str(tmp_path / "exact-runs.jsonl")
