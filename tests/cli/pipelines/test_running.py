"""A cluster that is up is used as it is, and its model is changed and released by names."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.cli.pipelines import answering
from flowedge.cli.pipelines.planned_pipeline import describe
from flowedge.client import Client
from flowedge.models.checkpoint.model_source import BUNDLED_PATH
from tests.support.processes import AgentProcess, agents
from tests.support.terminal import Terminal

ASK = ["generate", "--prompt", "Tell me a story about a lamp.", "--max-new-tokens", "4"]


@pytest.fixture(scope="module")
def group() -> str:
    """The name of a network that no other agents are on."""
    return uuid.uuid4().hex[:6]


@pytest.fixture(scope="module")
def boards(group: str) -> Iterator[list[AgentProcess]]:
    environment = {"FLOWEDGE_DISCOVERY__GROUP": group}
    with agents(["kitchen", "attic", "cellar"], advertise=True, environment=environment) as started:
        yield started


@pytest.fixture(autouse=True)
def laptop(group: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on this network that has asked nobody yet."""
    monkeypatch.setenv("FLOWEDGE_DISCOVERY__GROUP", group)
    monkeypatch.setenv("FLOWEDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def outcome(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> tuple[str, str]:
    """Run a command that ends with `code`; return what it wrote to both outputs."""
    capsys.readouterr()
    ended = run(list(command))
    captured = capsys.readouterr()
    assert ended == code, captured.err
    return captured.out, captured.err


def test_the_model_of_a_network_is_used_changed_and_released(
    boards: list[AgentProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, refused = outcome(capsys, *ASK, code=1)
    assert "no model is named" in refused and "--model bundled" in refused
    mine = shutil.copytree(BUNDLED_PATH / "model", tmp_path / "mine")
    out, _ = outcome(capsys, "use", str(mine), "--drafter", "none", "--devices", "cellar,attic,kitchen")
    assert out == "cellar runs mine, drafter none, on 2 stages of 4+4 layers: attic, kitchen\n"

    answer, said = outcome(capsys, *ASK)
    assert answer.strip() and "cellar: has the pipeline of mine ready" in said
    assert "has the pipeline of mine ready" in outcome(capsys, *ASK)[1], "it is remembered now"
    _, refused = outcome(capsys, *ASK, "--model", "bundled", code=1)
    assert "mine on cellar is running" in refused and "flowedge use bundled" in refused

    assert "is running already" in outcome(capsys, "use", str(mine), "--drafter", "none")[0]
    out, said = outcome(capsys, "use", "bundled")
    assert "released: mine on cellar, attic, kitchen" in said
    assert out.startswith("cellar runs bundled, drafter bundled, on 2 stages"), "the draft node stays"
    assert "has the pipeline of bundled ready" in outcome(capsys, *ASK, "--quant", "none")[1]

    _, refused = outcome(capsys, "release", "kitchn", code=2)
    assert "no device is called kitchn; found: attic, cellar, kitchen" in refused
    out, _ = outcome(capsys, "release", "kitchen")
    assert out == "released: bundled on cellar, attic, kitchen\n"
    assert outcome(capsys, "release", "kitchen")[0] == "kitchen: idle already, part of no pipeline\n"


def test_requests_that_run_are_not_ended_unasked(
    boards: list[AgentProcess], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the seconds of a search, in which the request could end.
    there = [agent.address for agent in boards[:2]]
    monkeypatch.setattr(answering, "find_devices", lambda *_, **__: {each: describe(each) for each in there})
    use = ["use", "bundled", "--quant"]
    outcome(capsys, *use, "none")
    with Client(there[0]) as client, client.generate("Hi", max_new_tokens=1500, ignore_eos=True) as answer:
        chunks = iter(answer)
        next(chunks)
        _, refused = outcome(capsys, *use, "int8", code=1)
        assert "bundled on kitchen, attic has 1 request running or waiting" in refused
        assert "--force" in refused
        assert "kitchen runs bundled in int8" in outcome(capsys, *use, "int8", "--force")[0]
    outcome(capsys, "release", there[0])


def test_a_person_is_asked_for_a_model(boards: list[AgentProcess], group: str, tmp_path: Path) -> None:
    shutil.copytree(BUNDLED_PATH / "model", tmp_path / "mine")
    environment = {"FLOWEDGE_DISCOVERY__GROUP": group, "FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    with Terminal(["chat", "--max-new-tokens", "8"], env=environment) as terminal:
        terminal.expect(r"1\s+bundled.*\n.*2\s+\./mine")
        terminal.expect("Which?")
        terminal.type("2\r")
        terminal.expect("/help shows the commands")
        terminal.expect(r"\n>")
        terminal.type("/model\r")
        terminal.expect(f"model: {tmp_path}/mine, drafter: ngram")
        terminal.expect(r"\n>")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert run(["release", "attic"]) == 0
