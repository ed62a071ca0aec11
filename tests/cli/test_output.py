"""What commands print goes through the functions that make it safe for a terminal."""

from __future__ import annotations

import ast
import io
import json
import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

import flowedge.cli
from flowedge.cli.output import VisibleFormatter, repeated, say, say_json, warn, write_answer
from flowedge.cli.screens.tables import TerminalConsole, plain_table
from flowedge.core.plain_text import MOST_SHOWN, visible, visible_answer, visible_field

NASTY = "\x1b]0;owned\x07\x9b31m\x7f\u202e\u2066\u200b\r\nforged\tline\u2028\ud800"
_MAY_PRINT = {"output.py"}
_MAY_HAVE_CONSOLES = {"tables.py"}


def test_nothing_in_a_field_commands_the_terminal_or_breaks_the_line() -> None:
    assert visible(NASTY) == (
        r"\u001b]0;owned\u0007\u009b31m\u007f\u202e\u2066\u200b\r\nforged\tline\u2028\ud800"
    )
    assert visible("Küche 😀 台所") == "Küche 😀 台所"
    assert visible_field("x" * (MOST_SHOWN + 1)) == "x" * MOST_SHOWN + "…"


def test_an_answer_keeps_its_lines_and_scripts() -> None:
    text = "a\tb\nc\u00a0d\u3000e 👩\u200d🚀 عربي\u200f"
    assert visible_answer(text) == text
    assert visible_answer("\x1b[2J\r\x9b\u202e") == r"\u001b[2J\r\u009b\u202e"


@given(st.text(st.characters(codec=None)))
def test_whatever_the_text_is(text: str) -> None:
    assert visible(text).isprintable()
    assert not set(visible_answer(text)) & {*map(chr, range(9)), "\x1b", "\r", "\x7f", "\x9b", "\u202e"}
    visible_answer(text).encode()


def test_each_way_out_is_safe(capsys: pytest.CaptureFixture[str]) -> None:
    say(NASTY)
    warn(NASTY)
    say_json({"a": NASTY})
    write_answer(NASTY)
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert err == visible(NASTY) + "\n"
    assert out.startswith(visible(NASTY) + "\n{\n")
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "%s", (NASTY,), None)
    assert VisibleFormatter().format(record) == visible(NASTY)


def test_a_console_sends_its_own_commands_only() -> None:
    written = io.StringIO()
    console = TerminalConsole(file=written, force_terminal=True, width=200, color_system="standard")
    table = plain_table(NASTY, right=("b",))
    table.add_row(NASTY, "[red]not markup[/red]")
    console.print(table)
    console.print(Text(NASTY, style="red"))
    shown = written.getvalue()
    assert "\x1b[31m" in shown, "the console's own"
    assert not any(command in shown for command in ("\x1b]", "\x07", "\x9b", "\u202e", "\r"))
    assert "[red]not markup[/red]" in shown
    assert json.dumps(NASTY)[1:6] in shown


def test_no_command_prints_by_itself() -> None:
    root = Path(flowedge.cli.__file__).parent
    found = []
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            prints = called in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write", "typer.secho")
            if prints and file.name not in _MAY_PRINT:
                found.append(f"{file.name}: {called}")
            if called == "Console" and file.name not in _MAY_HAVE_CONSOLES:
                found.append(f"{file.name}: {called}")
    assert found == []


def test_what_takes_long_is_said_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowedge.cli.output._REPEATED_S", 0.001)
    said: list[float] = []
    often = threading.Event()

    def tell(seconds: float) -> None:
        said.append(seconds)
        if len(said) == 3:
            often.set()

    with repeated(tell):
        assert often.wait(60)
    assert said == sorted(said)
    count = len(said)
    assert not [each.name for each in threading.enumerate() if each.name == "flowedge-repeated"]
    assert len(said) == count
