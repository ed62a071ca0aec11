"""`flowedge generate` with a damaged model: an error that names the device and its layers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowedge.cli.check import Checker
from flowedge.cli.prompt_answer import Verdict
from flowedge.core.sampling import SamplingParams
from tests.drafting.conftest import BUNDLED_MODEL
from tests.support.breadth import dealt
from tests.support.processes import LOAD_S, AgentProcess, FlowEdgeProcess

DAMAGE = b"\xff" * 100_000


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the bundled model with 100 kB of 0xFF in the middle of its weights."""
    directory = shutil.copytree(BUNDLED_MODEL, tmp_path_factory.mktemp("damaged") / "model")
    weights = directory / "model.safetensors"
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(DAMAGE)
    return directory


def generate(damaged: Path, *options: str) -> list[str]:
    """Return what a command prints that fails."""
    model = ["--model", str(damaged), "--drafter", "ngram", "--max-new-tokens", "8"]
    command = FlowEdgeProcess("generate", *model, "--prompt", "Count to five.", *options)
    try:
        command.start()
        assert command.wait(LOAD_S) == 1
        return command.lines
    finally:
        command.kill()


def assert_named(lines: list[str], device: str) -> None:
    error = lines[-1]
    assert error.startswith("flowedge: device ") and f"{device}: " in error
    assert "rows that layers 0 to 3 computed are not finite" in error
    assert "flowedge models verify" in error
    assert not any("identical" in line for line in lines)


@pytest.mark.parametrize("temperature", dealt(["0", "1"], "0".__eq__))
def test_a_request_ends_in_an_error(damaged: Path, idle_agents: list[AgentProcess], temperature: str) -> None:
    peers = ",".join(agent.address for agent in idle_agents[:3])
    lines = generate(damaged, "--peers", peers, "--check", "--temperature", temperature)
    assert_named(lines, idle_agents[1].name)


@pytest.mark.slow
def test_on_agents_of_the_command(damaged: Path) -> None:
    assert_named(generate(damaged, "--stages", "2", "--check"), "-v1")


def test_quantised(damaged: Path, idle_agents: list[AgentProcess]) -> None:
    """NaN that is quantised is a number like any other, so that nothing would notice it later."""
    peers = ",".join(agent.address for agent in idle_agents[:3])
    error = generate(damaged, "--peers", peers, "--quant", "int4")[-1]
    assert error.startswith(f"flowedge: device {idle_agents[1].name}: ")
    assert "model.layers.3." in error and "not finite" in error and "cannot be quantised" in error


def test_the_check_fails_where_the_plain_model_is_damaged(damaged: Path) -> None:
    """Whatever the answer of the devices: argmax of NaN is token 0, and equals itself."""
    checker = Checker(str(damaged), "none", "float32")
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=3)):
        verdict = checker.judge([11, 12, 13], [0, 0], sampling, "length", 2)
        assert not verdict.passed and verdict.tokens == 0
        assert "nothing to compare with: the plain model's logits are not finite" in verdict.line()
    nothing = checker.judge([11, 12, 13], [], SamplingParams(), "stop", 2)
    assert not nothing.passed and isinstance(nothing, Verdict)
