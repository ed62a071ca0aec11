"""Several drafters are named alike everywhere: --drafter, the agent's configuration, a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from flowedge.cli.main import run
from flowedge.cli.options import choose_drafter, choose_drafting
from flowedge.drafting.choice import default_drafter
from flowedge_testbed.scenario_parts import ModelSetNames
from tests.drafting.mtp_files import make_mtp
from tests.models.tiny_families import make_tiny
from tests.support.gguf_files import write_gguf


def test_an_option_is_repeated_and_local_paths_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a+b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert choose_drafter("bundled", ["a+b", "ngram"]) == (str(tmp_path / "a+b"), "ngram")
    assert choose_drafter("bundled", None) == ("bundled",)
    assert choose_drafter("owner/name", ["none"]) == ()
    assert choose_drafter("owner/name", None) == ()


@pytest.mark.parametrize(
    ("model", "given", "asked", "drafter", "strategy"),
    [
        ("bundled", None, "auto", ("bundled",), "auto"),
        ("bundled", ["none"], "auto", (), "autoregressive"),
        ("bundled", ["none"], "autoregressive", (), "autoregressive"),
        ("owner/name", None, "auto", ("ngram",), "auto"),
        ("owner/name", None, "flowspec", ("ngram",), "flowspec"),
        ("owner/name", None, "autoregressive", (), "autoregressive"),
        ("owner/name", ["none"], "auto", (), "autoregressive"),
        ("owner/name", ["owner/head"], "auto", ("owner/head",), "auto"),
    ],
)
def test_every_model_is_answered_without_a_drafter_of_its_own(
    model: str, given: list[str] | None, asked: str, drafter: tuple[str, ...], strategy: str
) -> None:
    choice = choose_drafting(model, given, asked)
    assert (choice.drafter, choice.strategy) == (drafter, strategy)
    assert bool(choice.notice) == (drafter == ("ngram",)), "lookup is chosen for the user, who is told"


def test_a_model_drafts_by_the_layer_that_comes_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, sharded, without = make_mtp(tmp_path / "own"), tmp_path / "sharded", tmp_path / "without"
    make_tiny(without, "qwen3_5")
    sharded.mkdir()
    (sharded / "config.json").write_text((own / "config.json").read_text())
    (sharded / "model.safetensors.index.json").write_text(
        '{"weight_map": {"mtp.fc.weight": "a.safetensors"}}'
    )
    (sharded / "a.safetensors").touch()
    gguf = write_gguf(tmp_path / "model.gguf", own, tokenizer=None)
    behind = make_mtp(tmp_path / "behind", "glm4_moe_lite")
    for model in (own, sharded, gguf, behind, without):
        drafter = "ngram" if model == without else "mtp"
        choice = choose_drafting(str(model), None, "auto")
        assert choice.drafter == (drafter,) and bool(choice.notice) == (drafter == "ngram")
        assert default_drafter(str(model)) == drafter
    asked = ["generate", "--stages", "1", "--prompt", "Hi", "--drafter", "mtp", "--model"]
    assert run([*asked, str(without)]) == 2
    assert f"--drafter mtp: {without} has no layer that predicts further tokens" in capsys.readouterr().err


def test_a_word_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mtp").mkdir()
    monkeypatch.chdir(tmp_path)
    assert choose_drafter("owner/name", ["mtp", "./mtp"]) == ("mtp", str(tmp_path / "mtp"))


@pytest.mark.parametrize("drafter", ['"ngram"', '["bundled", "ngram"]'])
def test_a_configuration_has_a_name_or_a_list(
    drafter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(f"[pipeline]\ndrafter = {drafter}\n")
    assert run(["agent", "--config", str(file), "--print-config"]) == 0
    assert f"\ndrafter = {drafter}  # " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "printed"), [("ngram", '"ngram"'), ('["bundled", "ngram"]', '["bundled", "ngram"]')]
)
def test_so_has_the_environment(
    value: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWEDGE_PIPELINE__DRAFTER", value)
    assert run(["agent", "--print-config"]) == 0
    assert f"\ndrafter = {printed}  # environment variable" in capsys.readouterr().out


def test_a_configuration_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[pipeline]\ndrafter = ["ngram", "ngram"]\n')
    assert run(["agent", "--config", str(file), "--print-config"]) == 2
    assert "not joined with itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "names", "written"),
    [
        ("bundled", ("bundled",), "bundled"),
        (["bundled", "ngram"], ("bundled", "ngram"), ["bundled", "ngram"]),
        ("none", (), "none"),
    ],
)
def test_a_scenario_has_a_name_or_a_list(given: object, names: tuple[str, ...], written: object) -> None:
    pair = ModelSetNames.model_validate({"drafter": given})
    assert pair.drafter == names
    assert pair.model_dump()["drafter"] == written


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["ngram", "ngram"], "not joined with itself"),
        (["none", "ngram"], "cannot be joined"),
        (3, "a list of names"),
        ([3], "a list of names"),
    ],
)
def test_a_scenario_is_checked(given: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ModelSetNames.model_validate({"drafter": given})
