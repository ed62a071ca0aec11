"""Trainings whose target is on agents of its own processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.cli.main import run
from flowedge.client import Client
from flowedge.core.errors import DeviceLostError
from flowedge.core.sampling import SamplingParams
from flowedge.training.cluster_target import open_cluster_target
from flowedge.training.local_target import LocalTarget
from flowedge.training.run import train_drafter
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import TrainingProgress
from flowedge.training.target import Question, TrainingTarget
from tests.drafting.conftest import save_small_lm
from tests.support.gguf_files import write_gguf
from tests.support.processes import AgentProcess
from tests.support.processes import agents as launched
from tests.training.test_training import Recorder

STEPS = 8
TRAINING = TrainingSettings(
    steps=STEPS,
    batch_tokens=128,
    max_length=48,
    learning_rate=5e-3,
    self_generate=1,
    answer_tokens=8,
    evaluate=1,
    seed=3,
)
OPTIONS = ["--steps", "8", "--batch-tokens", "128", "--max-length", "48", "--lr", "5e-3", "--seed", "3"]
OPTIONS += ["--self-generate", "1", "--answer-tokens", "8", "--evaluate", "1"]


class Killer(Recorder):
    """Kills an agent after a step."""

    def __init__(self, agent: AgentProcess, step: int) -> None:
        super().__init__()
        self._agent = agent
        self._step = step

    def step(self, progress: TrainingProgress, share: float) -> None:
        super().step(progress, share)
        if progress.step == self._step:
            self._agent.kill()


@pytest.fixture(scope="module", autouse=True)
def small_work() -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flowedge.training.run.NEW_TOKENS", 12)
        yield


@pytest.fixture(scope="module")
def agents() -> Iterator[list[AgentProcess]]:
    with launched([f"train-{uuid.uuid4().hex[:6]}-v{place}" for place in (1, 2)]) as running:
        yield running


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_lm(tmp_path_factory.mktemp("target"), seed=2)


@pytest.fixture(scope="module")
def local(target: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, float]:
    """The result of a training in one process: losses by step, and the acceptance length."""
    watcher = Recorder()
    acceptance = train_drafter(str(target), data, tmp_path_factory.mktemp("local") / "h", TRAINING, watcher)
    return watcher, acceptance.length


def cluster_target(
    target: Path, agents: list[AgentProcess], taps: tuple[int, ...] = ()
) -> AbstractContextManager[TrainingTarget]:
    addresses = [agent.address for agent in agents]
    return open_cluster_target(
        str(target), "none", torch.float32, taps, stages=addresses, report=lambda *_: None
    )


def test_rows_and_answers_are_those_of_a_local_target(target: Path, agents: list[AgentProcess]) -> None:
    """Texts are endless, and some take several prefill chunks; layers are tapped."""
    texts = [np.arange(5, 5 + length, dtype=np.int32) for length in (3, 300, 40)]
    questions = [
        Question(range(5, 20), SamplingParams(temperature=t, seed=7), count)
        for t, count in ((0.0, 6), (1.0, 9), (1.0, 3))
    ]
    alone = LocalTarget(str(target), "none", torch.float32, taps=(0, 1))
    with cluster_target(target, agents, taps=(0, 1)) as together:
        rows = together.features(cycle(texts))
        for ours, expected in zip(islice(rows, 7), cycle(alone.features(texts)), strict=False):
            assert ours.shape[1] == 3 * 32
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        rows.close()
        assert list(together.answers(questions)) == list(alone.answers(questions))


def test_a_table_of_integers_is_trained_with_as_floats(
    target: Path, agents: list[AgentProcess], tmp_path: Path
) -> None:
    """A draft node multiplies with the integers of a GGUF file, which pass on no gradients."""
    file = write_gguf(tmp_path / "model.gguf", target, "Q8_0")
    rows = torch.randn(3, 32, requires_grad=True)
    alone = LocalTarget(str(file), "none", torch.float32)
    with cluster_target(file, agents) as together:
        logits = together.lm_head.differentiable_logits(rows)
    assert torch.equal(logits, alone.lm_head.differentiable_logits(rows))
    logits.sum().backward()
    assert rows.grad is not None and bool(rows.grad.any())


def test_a_training_over_two_agents_equals_a_local_one(
    target: Path, data: Path, agents: list[AgentProcess], local: tuple[Recorder, float], tmp_path: Path
) -> None:
    watcher = Recorder()
    acceptance = train_drafter(
        str(target),
        data,
        tmp_path / "head",
        TRAINING,
        watcher,
        open_target=lambda model, quant, dtype, taps: cluster_target(Path(model), agents, taps),
    )
    assert list(watcher.losses) == list(range(1, STEPS + 1))
    for step, losses in watcher.losses.items():
        assert losses == pytest.approx(local[0].losses[step], rel=1e-3)
    assert acceptance.length == pytest.approx(local[1], rel=0.1)
    for agent in agents:
        with Client(agent.address) as client:
            assert client.describe().role == "idle"


def test_a_lost_agent_is_named_and_the_same_command_goes_on(
    target: Path,
    data: Path,
    agents: list[AgentProcess],
    local: tuple[Recorder, float],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The state at the loss is kept; the command line goes on from it with the remaining agent."""
    out, killer = tmp_path / "head", Killer(agents[1], step=3)
    opener = partial(open_cluster_target, stages=[agent.address for agent in agents], report=lambda *_: None)
    with pytest.raises(DeviceLostError, match=agents[1].name):
        train_drafter(str(target), data, out, TRAINING, killer, open_target=opener)
    assert killer.kept == max(killer.losses) >= 3
    command = ["train-drafter", str(target), "--data", str(data), "--out", str(out), *OPTIONS, "--peers"]
    assert run([*command, f"{agents[0].address},{agents[1].address}"]) == 1
    error = capsys.readouterr().err
    assert agents[1].address in error.splitlines()[-1]
    assert "The same command goes on" in error
    assert run([*command, agents[0].address]) == 0
    assert f"going on from step {killer.kept}" in capsys.readouterr().err
    training = json.loads((out / "training.json").read_text())["training"]
    assert training["step"] == STEPS
    assert training["feature_loss"] == pytest.approx(local[0].losses[STEPS][0], rel=1e-3)
