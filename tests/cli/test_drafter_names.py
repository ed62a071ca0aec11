"""Several drafters are named alike everywhere: --drafter, the agent's configuration, a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from flowedge.cli.main import run
from flowedge.cli.options import choose_drafter, choose_drafting
from flowedge_testbed.scenario_parts import ModelSetNames


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
