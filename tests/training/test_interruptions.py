"""Trainings that are interrupted, lengthened and repeated, by the real command."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flowedge.cli.main import run
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.training import state as state_module
from flowedge.training.interruption import SIGNALS, Interruption
from flowedge.training.state import StateFolder, TrainingProgress, TrainingState, clear, only_training
from tests.drafting.conftest import save_small_lm
from tests.support.processes import FlowEdgeProcess

STOPPED = re.compile(r"stopped; step (\d+) is saved in ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [{"prompt": f"Count to {n}.", "response": " ".join(map(str, range(1, n)))} for n in range(5, 30)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


def arguments(data: Path, out: Path, *options: str, model: str = "bundled") -> list[str]:
    given = ["--data", str(data), "--out", str(out), "--batch-tokens", "64", "--max-length", "48"]
    return ["train-drafter", model, *given, *options]


def interrupt(command: Sequence[str], number: signal.Signals) -> tuple[list[str], int]:
    """Send a signal to a command that has trained a step; return its lines and the step that it has saved."""
    process = FlowEdgeProcess(*command)
    try:
        process.start()
        process.line("training: ")
        process.signal(number)
        assert process.wait(60.0) == 130
        found = STOPPED.search(process.lines[-1])
        assert found is not None, process.lines
        return process.lines, int(found.group(1))
    finally:
        process.kill()


def saved_step(out: Path) -> int:
    progress = StateFolder(out / ".training", identity_of(out)).progress()
    assert progress is not None
    return progress.step


def identity_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / ".training" / "identity.json").read_text()))


def test_a_signal_saves_the_last_step_and_more_minutes_go_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first saving by the clock is two minutes away; a file gets lines without control codes."""
    out = tmp_path / "head"
    lines, first = interrupt(arguments(data, out, "--minutes", "20", "--evaluate", "0"), signal.SIGINT)
    assert first == saved_step(out) >= 1
    assert not any(character in line for line in lines for character in "\x1b\r")
    assert any(
        re.match(r"training: 0 %, step 1, CE [\d.]+, agreed [\d.]+, L1 [\d.]+, \d+ min left$", line)
        for line in lines
    )

    assert run(arguments(data, out, "--minutes", "10", "--evaluate", "0")) == 2
    assert "holds a training of 20 minutes: give --minutes 20 or more" in capsys.readouterr().err
    assert run(arguments(data, out, "--steps", "10", "--evaluate", "0")) == 2
    assert "holds a training of 20 minutes" in capsys.readouterr().err
    assert run(arguments(data, out, "--minutes", "20", "--evaluate", "0", "--seed", "1")) == 2
    assert "another seed (0, now 1)" in capsys.readouterr().err

    lines, second = interrupt(arguments(data, out, "--minutes", "30", "--evaluate", "0"), signal.SIGTERM)
    assert f"going on from step {first}" in lines
    assert second == saved_step(out) > first
    assert identity_of(out)["minutes"] == 30


def test_a_finished_training_is_not_evaluated_again(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = tmp_path / "head", str(save_small_lm(tmp_path / "target"))
    short = arguments(data, out, "--minutes", "0.001", "--evaluate", "1", model=model)
    assert run(short) == 0
    first = capsys.readouterr()
    assert "evaluating: 100 %, 1/1" in first.err and "acceptance length" in first.out
    steps, report = saved_step(out), (out / "training.json").read_bytes()

    assert run(short) == 0
    again = capsys.readouterr()
    assert again.out == first.out and (out / "training.json").read_bytes() == report
    assert f"was finished and evaluated before: {steps} steps" in again.err
    assert "More --minutes than 0.001 continue it; --restart starts over" in again.err
    assert "evaluating" not in again.err and "training:" not in again.err

    (out / "training.json").unlink()  # as after an interruption in the evaluation
    assert run(short) == 0
    assert "evaluating: 100 %" in capsys.readouterr().err and saved_step(out) == steps

    assert run(arguments(data, out, "--minutes", "0.01", "--evaluate", "1", model=model)) == 0
    longer = capsys.readouterr().err
    assert f"going on from step {steps}" in longer and "evaluating: 100 %" in longer
    assert saved_step(out) > steps


def test_a_section_is_not_left_halfway_and_each_signal_counts() -> None:
    for number in SIGNALS:  # whatever the shell that runs the tests ignores
        signal.signal(number, signal.default_int_handler)
    interruption, before, done = Interruption(), signal.getsignal(signal.SIGINT), []
    with interruption.handled():
        for number in SIGNALS:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt), interruption.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("whole")
        with interruption.deferred():
            done.append("and quiet after it")
    assert len(done) == 2 and signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_saving_leaves_the_last_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = StateFolder(tmp_path / ".training", {"seed": 0})
    states.save(TrainingState(TrainingProgress(step=3), {"head.a": torch.ones(4)}))

    def half(tensors: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(state_module, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        states.save(TrainingState(TrainingProgress(step=4), {"head.a": torch.zeros(4)}))
    left = states.load()
    assert left is not None and left.progress.step == 3
    assert torch.equal(left.tensors["head.a"], torch.ones(4))


def test_a_checkpoint_that_the_disk_has_changed_is_refused(tmp_path: Path) -> None:
    states = StateFolder(tmp_path / ".training", {"seed": 0})
    states.save(TrainingState(TrainingProgress(step=3), {"head.a": torch.ones(4)}))
    weights = tmp_path / ".training" / "step-3.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"not those that were written.*--restart"):
        states.load()
    state = json.loads((tmp_path / ".training" / "state.json").read_text())
    del state["sha256"]  # as by a former version
    (tmp_path / ".training" / "state.json").write_text(json.dumps(state))
    assert states.load() is not None


def test_two_processes_do_not_train_in_one_directory(tmp_path: Path) -> None:
    folder = tmp_path / "head" / ".training"
    with only_training(folder):
        StateFolder(folder, {"seed": 0})
        with pytest.raises(BadRequestError, match="another process trains there"), only_training(folder):
            pass
        clear(folder)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    with only_training(folder):
        pass
