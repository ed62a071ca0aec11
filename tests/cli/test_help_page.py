"""Help at every width: nothing is cut, and an option without a value shows none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.core

from flowedge.cli.help_page import help_page
from flowedge.cli.main import all_commands, app, run
from tests.support.terminal import run_in_terminal

WIDTHS = (40, 60, 80, 120)
LONGEST_WORD = 44  # characters, with the indentation before it


def _pages(width: int) -> Iterator[tuple[Any, Any, str]]:
    """Yield each command with its context and its help page."""
    root = typer.main.get_command(app)
    context = root.make_context("flowedge", ["--help"], resilient_parsing=True)
    yield root, context, help_page(root, context, width)
    for name in all_commands():
        _, command, _ = root.resolve_command(context, [name])  # type: ignore[attr-defined]
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        yield command, own, help_page(command, own, width)
        for inner in getattr(command, "commands", {}).values():
            below = inner.make_context(inner.name, [], parent=own, resilient_parsing=True)
            yield inner, below, help_page(inner, below, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_help_fits_and_loses_no_word(width: int) -> None:
    pages = list(_pages(width))
    assert len(pages) > 18
    for command, context, page in pages:
        assert "…" not in page
        assert max(map(len, page.split("\n"))) <= max(width, LONGEST_WORD), page
        shown = " ".join(page.split())
        for parameter in command.get_params(context):
            if parameter.hidden:
                continue
            for flag in [*parameter.opts, *parameter.secondary_opts]:
                assert flag.upper() in shown.upper() or parameter.metavar in shown
            assert " ".join((parameter.help or "").split()) in shown


def test_a_flag_takes_no_value_and_a_value_has_a_readable_name() -> None:
    for command, context, page in _pages(80):
        assert not any(word in page for word in ("<bool>", "<int", "<str", "<float", "list[", "x>=", "<=x"))
        lines = page.split("\n")
        for parameter in command.get_params(context):
            if getattr(parameter, "is_flag", False) and not parameter.secondary_opts and not parameter.hidden:
                (line,) = [text for text in lines if re.match(rf"  (-\w, )?{parameter.opts[0]}[ ,]", text)]
                assert re.match(r"  (-\w, )?--[\w-]+(, -\w)?(  |$)", line), line


@pytest.mark.parametrize("width", [40, 60, 80])
def test_flowedge_alone_is_a_short_overview(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "flowedge demo" in out
    assert "flowedge --help" in " ".join(out.split())
    lines = out.rstrip("\n").split("\n")
    assert all(len(line) <= width for line in lines)
    assert 5 <= len(lines) <= (12 if width >= 60 else 15)


def test_a_group_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster"]) == 0
    out, err = capsys.readouterr()
    assert "  token " in out
    assert err == ""


def test_help_and_an_error_in_a_terminal_of_60_columns() -> None:
    code, text = run_in_terminal(["devices", "--help"], 60)
    assert code == 0
    assert "  --peers HOST:PORT,...\n" in text
    assert max(map(len, text.split("\n"))) <= 60
    code, text = run_in_terminal(["devices", "--peers", "192.168.122.101,192.168.122.102:50051"], 60)
    assert code == 2
    assert max(map(len, text.split("\n"))) <= 60
    assert "192.168.122.101" in text


def test_devices_in_a_terminal_of_60_columns() -> None:
    code, text = run_in_terminal(["devices", "--peers", "127.0.0.1:1"], 60)
    assert code == 0
    assert max(map(len, text.split("\n"))) <= 60
    assert "127.0.0.1:1" in text
    assert "connection" in text
