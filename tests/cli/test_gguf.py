"""GGUF files through the command line and real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from flowedge.cli.main import run
from flowedge.client import Client
from flowedge.client.assembly import release
from flowedge.device.kernel_library import missing_reason
from tests.support.breadth import dealt
from tests.support.gguf_files import BUNDLED, write_gguf
from tests.support.processes import AgentProcess, agents

PROMPT = ["--prompt", "Tell me about a farmer with 12 hens.", "--max-new-tokens", "24"]
SPECIAL = (2, 3)  # the tokens before the user's and before the assistant's text
PASSED = "check: the output is identical to the plain model's"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf", BUNDLED, "Q4_0")


def generate(devices: list[AgentProcess], model: Path, *options: str) -> int:
    peers = ",".join(agent.address for agent in devices)
    return run(
        ["generate", "--model", str(model), "--drafter", "bundled", "--peers", peers, *PROMPT, *options]
    )


@pytest.mark.slow
@pytest.mark.parametrize("quant", dealt(["none", "int4"], "int4".__eq__))
def test_generate_with_the_check(
    idle_agents: list[AgentProcess], path: Path, capsys: pytest.CaptureFixture[str], quant: str
) -> None:
    options = ["--quant", quant, "--temperature", "0.8", "--seed", "3", "--check"]
    assert generate(idle_agents[:3], path, *options) == 0
    assert PASSED in capsys.readouterr().err


@pytest.mark.slow
def test_another_tokenizer_is_part_of_the_pipeline(
    idle_agents: list[AgentProcess], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path)
    agents = idle_agents[:2]
    addresses = [agent.address for agent in agents]
    for name, special in (("", 2), (str(tmp_path), 0)):
        option = ["--tokenizer", name] if name else []
        assert generate(agents, path, *option) == 0
        with Client(addresses[0]) as client:
            assert client.describe().tokenizer == name
            answer = client.generate("Hello", max_new_tokens=2).result()
        assert sum(token in SPECIAL for token in answer.prompt_ids) == special
        other = [] if name else ["--tokenizer", str(tmp_path)]
        assert generate(agents, path, *other) == 1
        assert "release that first" in capsys.readouterr().err
        release(addresses, "")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("/no/such/place", "tokenizer /no/such/place: no such directory"),
        ("EMPTY", "there is no tokenizer.json"),
    ],
)
def test_a_tokenizer_that_is_nowhere(
    idle_agents: list[AgentProcess],
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    message: str,
) -> None:
    here = option == "EMPTY"  # a path that is not on this machine may be on the agents, which are asked
    given = str(tmp_path) if here else option
    assert generate(idle_agents[:2], path, "--tokenizer", given) == (2 if here else 1)
    assert message in capsys.readouterr().err


def test_sizes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["inspect", "bundled", "--json"]) == 0
    original = json.loads(capsys.readouterr().out)
    assert found["parameters"] == original["parameters"]
    held = found["layer_bytes"]["none"][0]
    assert (held < original["layer_bytes"]["none"][0]) == (not missing_reason())  # as they are stored
    assert found["layer_bytes"]["int4"][0] > original["layer_bytes"]["int4"][0]  # groups of 32, not of 64
    shutil.copy(path, tmp_path / "one.gguf")
    assert run(["inspect", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layer_bytes"] == found["layer_bytes"]


def test_pulled_into_the_cache(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWEDGE_CACHE_DIR", str(tmp_path))
    assert run(["models", "pull", str(path)]) == 0
    capsys.readouterr()
    assert run(["models", "--local", "--json"]) == 0
    [model] = json.loads(capsys.readouterr().out)
    assert model["name"] == "model.gguf" and model["here_bytes"] == model["total_bytes"]
    assert abs(model["total_bytes"] - path.stat().st_size) < 0.3 * path.stat().st_size


def test_what_cannot_be_loaded_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert run(["inspect", str(tmp_path / "x.gguf")]) == 1
    assert "x.gguf: is not a valid GGUF file: its header ends too early" in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.slow
def test_drafter_and_middle_model(
    idle_agents: list[AgentProcess], path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A language model in a GGUF file drafts, and predicts between the drafter and the target."""
    small = write_gguf(tmp_path / "small.gguf", BUNDLED.parent / "small", "Q8_0", tokenizer=BUNDLED)
    peers = ",".join(agent.address for agent in idle_agents[:3])
    models = ["--model", str(path), "--drafter", str(small), "--middle", str(small), "--strategy", "pipespec"]
    assert run(["generate", "--peers", peers, "--check", *models, *PROMPT]) == 0
    assert PASSED in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.slow
def test_stages_without_the_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"weights": {"directories": False}, "cache": {"dir": str(tmp_path)}}
    with agents(["d0"]) as draft_nodes, agents(["v1", "v2"], settings=settings) as stages:
        assert generate([*draft_nodes, *stages], path, "--quant", "int4", "--check") == 0
        captured = capsys.readouterr()
        assert PASSED in captured.err
        for stage in stages:
            assert f"{stage.name}: fetched " in captured.err
