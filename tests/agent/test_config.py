"""The origins of an agent's settings, and the messages about wrong settings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.config_loading import AGENT_FORM, EffectiveConfig, load_config
from flowedge.agent.config_rendering import (
    AGENT_DOCUMENTS,
    OPTIONS_FILE,
    example_value,
    toml_value,
    with_options,
)
from flowedge.cli.main import run
from flowedge.core.errors import BadRequestError
from flowedge.discovery.settings import DiscoverySettings
from flowedge.network.link_settings import LinkSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WRITE = "python -m flowedge.agent.config_rendering"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the FLOWEDGE variables of the calling process."""
    for variable in os.environ:
        if variable.startswith("FLOWEDGE_"):
            monkeypatch.delenv(variable)


def load(
    path: Path | None, flags: dict[str, tuple[str, str, Any]] | None = None
) -> EffectiveConfig[AgentConfig]:
    return load_config(flags or {}, path, default_file=Path("/nowhere"))


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_before_environment_before_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[agent]\nport = 1\nname = "file"\nthreads = 2\n\n[cache]\ngib = 5\ndir = "/a"\n')
    monkeypatch.setenv("FLOWEDGE_AGENT__PORT", "3")
    monkeypatch.setenv("FLOWEDGE_AGENT__NAME", "environment")
    monkeypatch.setenv("FLOWEDGE_CACHE_GIB", "7")
    effective = load(path, {"--port": ("agent", "port", 4), "--name": ("agent", "name", None)})
    agent, cache = effective.config.agent, effective.config.cache
    assert (agent.port, agent.name, agent.threads) == (4, "environment", 2)
    assert (cache.gib, cache.dir, agent.host) == (7, "/a", None)
    assert effective.origins == {
        ("agent", "port"): "flag --port",
        ("agent", "name"): "environment variable FLOWEDGE_AGENT__NAME",
        ("agent", "threads"): f"{path}:4:1",
        ("cache", "gib"): "environment variable FLOWEDGE_CACHE_GIB",
        ("cache", "dir"): f"{path}:8:1",
    }


def test_without_any_the_defaults_are_those_of_the_runtime(tmp_path: Path) -> None:
    assert load(None).config == AgentConfig()
    assert load(None).config.link == LinkSettings()
    path = write(tmp_path, "[agent]\nport = 9\n")
    assert load_config({}, default_file=path).config.agent.port == 9


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[agent]\nport = 1\nprot = 2\n", ":3:1", "no setting agent.prot; did you mean port?"),
        ("[agnet]\n", ":1:2", "no section agnet; did you mean agent?"),
        ("port = 1\n", ":1:1", "port belongs below [agent]"),
        ("[cache]\n\nport = 1\n", ":3:1", "it belongs below [agent]"),
        ("agent = 1\n", ":1:1", "write [agent]"),
        ('[agent]\nname = """\nport = x\n"""\n  port = 70000\n', ":5:3", "less than or equal to 65535"),
        ('[agent]\nport = "1"\n', ":2:1", "'1': input should be a valid integer"),
        ("[agent]\nthreads = true\n", ":2:1", "integer"),
        ("agent.threads = 0\n", ":1:7", "greater than or equal to 1"),
        ('[agent]\nhost = "board"\n', ":2:1", "give an IP address"),
        ('[pipeline]\ndrafter = ["a", "a"]\n', ":2:1", "the drafter a is not joined with itself"),
        ("[cache]\ngib = nan\n", ":2:1", "finite"),
        ("[deadlines]\nsilence_s = 0.5\n", ":1:2", "longer than heartbeat_s"),
        ("[agent]\nport = = 1\n", ":2:8", "nvalid value"),
        ("[agent]\nport = 1\nport = 2\n", ":3", "overwrite"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(
    text: str, place: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    assert run(["agent", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"flowedge: {path}{place}" in error
    assert reason in error
    assert error.count("\n") == 1


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "[agent]\nport = -1\n[cache]\ngib = -1\n")
    with pytest.raises(BadRequestError, match=r"agent\.toml:2:1: .*; .*agent\.toml:4:1: "):
        load(path)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("FLOWEDGE_AGENT__PORT", "many", "FLOWEDGE_AGENT__PORT: agent.port is 'many'"),
        ("FLOWEDGE_AGENT__PROT", "1", "FLOWEDGE_AGENT__PROT: there is no setting agent.prot; did you mean"),
        ("FLOWEDGE_AGNET__PORT", "1", "FLOWEDGE_AGNET__PORT: there is no section agnet; did you mean"),
        ("FLOWEDGE_AGENT", "1", "FLOWEDGE_AGENT: agent is a section"),
        ("FLOWEDGE_CACHE_GIB", "lots", "FLOWEDGE_CACHE_GIB: cache.gib is 'lots'"),
        ("FLOWEDGE_DEADLINES__SILENCE_S", "0.1", r"FLOWEDGE_DEADLINES__\*: deadlines: silence_s must be"),
    ],
)
def test_what_is_wrong_in_the_environment_is_said_with_its_name(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadRequestError, match=reason):
        load(None)


def test_other_variables_are_none_of_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWEDGE_DEBUG", "1")
    monkeypatch.setenv("FLOWEDGE_CACHE_GIB", "")
    assert load(None).config == AgentConfig()


def test_print_config_gives_a_file_that_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, '[agent]\nname = "k\\u007F\\"ü#"\nport = 5\n')
    assert run(["agent", "--config", str(path), "--port", "6", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "\nport = 6  # flag --port\n" in printed
    assert f"  # {path}:2:1\n" in printed
    again = load(write(tmp_path, printed)).config
    assert (again.agent.name, again.agent.port) == ('k\x7f"ü#', 6)


def test_the_shipped_file_has_every_setting_once_with_one_comment() -> None:
    text = (ROOT / AGENT_DOCUMENTS.example_file).read_text(encoding="utf-8")
    assert text == AGENT_DOCUMENTS.example_toml(), WRITE
    assert {key for table in tomllib.loads(text).values() for key in table} == set()
    found = re.findall(r"^# .+\n#(\w+) = .", text, re.MULTILINE)
    assert found == [key for model in AGENT_FORM.sections.values() for key in model.model_fields]
    given = AgentConfig.model_validate(tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE)))
    for section, model in AGENT_FORM.sections.items():
        for key, field in model.model_fields.items():
            assert getattr(getattr(given, section), key) == example_value(field)
            assert field.default is None or example_value(field) == field.default


def test_the_table_of_options_is_the_present_one() -> None:
    text = (ROOT / OPTIONS_FILE).read_text(encoding="utf-8")
    assert text == with_options(text), WRITE


def test_the_table_in_the_docs_has_every_setting() -> None:
    text = (ROOT / AGENT_DOCUMENTS.table_file).read_text(encoding="utf-8")
    assert text == AGENT_DOCUMENTS.with_table(text), WRITE
    found = re.findall(r"^\| `(\w+)\.(\w+)` \| (?:`.+`)? \| .+ \|$", text, re.MULTILINE)
    sections = AGENT_FORM.sections.items()
    assert found == [(section, key) for section, model in sections for key in model.model_fields]


def test_lists_and_paths_are_written_too() -> None:
    assert toml_value(("a", Path("/b"), True, 1, 2.5)) == '["a", "/b", true, 1, 2.5]'
    with pytest.raises(TypeError, match="dict"):
        toml_value({})


def test_drafters_are_a_name_or_a_list_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drafters() -> tuple[str, ...]:
        return load(path).config.pipeline.drafters

    path = write(tmp_path, "")
    assert drafters() == ("bundled",)
    path = write(tmp_path, '[pipeline]\ndrafter = "none"\n')
    assert drafters() == ()
    path = write(tmp_path, '[pipeline]\ndrafter = ["bundled", "ngram"]\n')
    assert drafters() == ("bundled", "ngram")
    monkeypatch.setenv("FLOWEDGE_PIPELINE__DRAFTER", "ngram")
    assert drafters() == ("ngram",)
    monkeypatch.setenv("FLOWEDGE_PIPELINE__DRAFTER", '["a", "b"]')
    assert drafters() == ("a", "b")


def test_discovery_is_configured_for_agents_and_for_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path, '[discovery]\npeers = ["10.0.0.9:7070"]\nallow = ["eth*", "10.0.0.0/8"]\nttl_s = 5\n'
    )
    settings = load(path).config.discovery
    assert settings == DiscoverySettings(peers=("10.0.0.9:7070",), allow=("eth*", "10.0.0.0/8"), ttl_s=5)
    with pytest.raises(BadRequestError, match="host:port"):
        load(write(tmp_path, '[discovery]\npeers = ["board"]\n'))
    monkeypatch.setenv("FLOWEDGE_DISCOVERY__PEERS", '["10.0.0.8:7070"]')
    assert load_config().config.discovery.peers == ("10.0.0.8:7070",)


@pytest.mark.parametrize("name", [".", "/dev/zero"])
def test_what_is_no_file_is_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(
        BadRequestError, match=f"{path} is (a directory|not a regular file); name a TOML file"
    ):
        load_config(path=path)


def test_the_null_device_is_an_empty_file() -> None:
    assert load_config(path=Path(os.devnull)).config == AgentConfig()


def test_a_file_that_this_user_may_not_read(tmp_path: Path) -> None:
    file, closed = tmp_path / "agent.toml", tmp_path / "closed"
    file.write_text("[agent]\nport = 3\n")
    file.chmod(0)
    closed.mkdir(mode=0)
    tmp_path.chmod(0o755)
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        reaches = os.access(tmp_path, os.X_OK, effective_ids=True)
        for path in (file, closed / "agent.toml") if reaches else (file,):
            with pytest.raises(BadRequestError, match=f"{path} may not be read by this user"):
                load_config(path=path)
            with pytest.raises(BadRequestError, match="may not be read by this user"):
                load_config(default_file=path)
    finally:
        os.seteuid(own)
        closed.chmod(0o700)
