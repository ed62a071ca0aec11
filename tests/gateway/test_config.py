"""The settings of a gateway, and the documents made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.agent.config_loading import load, load_config
from flowedge.core.errors import BadRequestError
from flowedge.gateway.config import GATEWAY_DOCUMENTS, GATEWAY_FORM

ROOT = Path(__file__).parents[2]
WRITE = "write it with python -m flowedge.gateway.config"


def test_the_example_file_is_current() -> None:
    text = (ROOT / GATEWAY_DOCUMENTS.example_file).read_text(encoding="utf-8")
    assert text == GATEWAY_DOCUMENTS.example_toml(), WRITE


def test_the_table_is_current() -> None:
    text = (ROOT / GATEWAY_DOCUMENTS.table_file).read_text(encoding="utf-8")
    assert text == GATEWAY_DOCUMENTS.with_table(text), WRITE


def test_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        '[http]\nlisten = "127.0.0.1:1"\ncors_origins = ["https://a.example"]\n[limits]\nheaders = 7\n'
    )
    monkeypatch.setenv("FLOWEDGE_SERVE_HTTP__LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("FLOWEDGE_SERVE_HTTP__CORS_ORIGINS", '["https://b.example"]')
    config = load(GATEWAY_FORM, {}, file).config
    assert (config.http.listen, config.limits.headers) == ("127.0.0.1:2", 7)
    assert config.http.cors_origins == ("https://b.example",)
    flagged = load(GATEWAY_FORM, {"--listen": ("http", "listen", "127.0.0.1:3")}, file).config
    assert flagged.http.listen == "127.0.0.1:3"


def test_variables_of_the_gateway_are_none_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWEDGE_SERVE_LIMITS__HEADERS", "7")
    load_config(default_file=Path("/nowhere"))
    monkeypatch.setenv("FLOWEDGE_SERVE_LIMITS__NOTHING", "7")
    with pytest.raises(BadRequestError, match=r"FLOWEDGE_SERVE_LIMITS__NOTHING: there is no setting"):
        load(GATEWAY_FORM, default_file=Path("/nowhere"))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("http", "listen", "localhost"),
        ("http", "listen", "kitchen:80"),
        ("http", "root_path", "llm/"),
        ("access", "keys", "no"),
        ("limits", "body_bytes", 1),
        ("deadlines", "headers_s", 0),
    ],
)
def test_wrong_values_are_named(section: str, key: str, value: object) -> None:
    with pytest.raises(BadRequestError, match=rf"flag --x: {section}\.{key}"):
        load(GATEWAY_FORM, {"--x": (section, key, value)}, default_file=Path("/nowhere"))


@pytest.mark.parametrize(
    ("listen", "local"), [("127.0.0.1:0", True), ("[::1]:8000", True), ("0.0.0.0:8000", False)]
)
def test_what_is_loopback(listen: str, local: bool) -> None:
    flags = {"--listen": ("http", "listen", listen)}
    http = load(GATEWAY_FORM, flags, default_file=Path("/nowhere")).config.http
    assert http.is_local == local
    assert http.port == int(listen.rpartition(":")[2])
