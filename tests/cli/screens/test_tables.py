"""Tables fit the terminal: no address is broken over lines, and devices are told apart by their names."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from flowedge.cli.screens.device_table import device_table
from flowedge.cli.screens.tables import (
    Column,
    ColumnKind,
    TerminalConsole,
    lay_out,
    output_console,
    shorten_middle,
)

DEVICE: dict[str, Any] = {
    "kind": "Jetson Orin Nano",
    "addresses": ["192.168.122.101:50051"],
    "compute": {"device": "cpu"},
    "dtype": "bfloat16",
    "memory_total": 8 << 30,
    "memory_available": 7 << 30,
    "version": "0.1.0",
    "round_trip_s": 0.0014,
    "stale": False,
    "duplicates": [],
    "problem": None,
}
ROWS = [
    DEVICE
    | {
        "name": f"kitchen-board-of-the-house-v{number}",
        "address": f"192.168.122.10{number}:50051",
        "role": "stage",
        "model": "bundled",
        "layers": (0, 4),
        "problem": "it speaks protocol 3, this machine protocol 5; install the same version on both",
    }
    for number in (1, 2)
]
LONG_ADDRESS = "[fe80::1234:5678:9abc:def0%eth0]:50051"

# Every character is as wide as it is in a terminal: control characters are escaped before the layout.
_words = st.text(st.sampled_from("ab-./:台é "), max_size=60).map(lambda text: " ".join(text.split()))
_columns = st.builds(Column, _words, st.sampled_from(ColumnKind), st.booleans(), st.integers(0, 3))


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[Column], list[list[str]]]:
    columns = draw(st.lists(_columns, min_size=1, max_size=6))
    row = st.tuples(*(_words for _ in columns)).map(list)
    return columns, draw(st.lists(row, max_size=4))


def _printed(rows: list[dict[str, Any]], width: int) -> str:
    console = TerminalConsole(file=io.StringIO(), width=width, highlight=False)
    console.print(device_table(rows))
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


@given(_tables(), st.integers(20, 140))
@example(([Column("", ColumnKind.PROSE)], [["a" * 14 + " bcd bcd"]]), 20)
@settings(max_examples=100, deadline=None)
def test_no_line_is_wider_than_the_terminal_unless_a_single_word_is(
    table: tuple[list[Column], list[list[str]]], width: int
) -> None:
    columns, rows = table
    texts = [column.title for column in columns] + [text for row in rows for text in row]
    longest = max((cell_len(word) for text in texts for word in text.split()), default=0)
    whole = [
        row[index] for row in rows for index in range(len(columns)) if columns[index].form is ColumnKind.WHOLE
    ]
    for line in lay_out(columns, rows, width).lines:
        assert cell_len(line.text) <= max(width, longest + 6, *map(cell_len, whole))


@given(_tables(), st.integers(20, 140))
@settings(max_examples=100, deadline=None)
def test_what_must_stay_whole_is_on_one_line_or_its_column_is_named_as_left_out(
    table: tuple[list[Column], list[list[str]]], width: int
) -> None:
    columns, rows = table
    laid = lay_out(columns, rows, width)
    for number, row in enumerate(rows):
        lines = [line.text for line in laid.lines if line.row == number]
        for column, text in zip(columns, row, strict=True):
            if column.form is ColumnKind.WHOLE and text and column.title not in laid.left_out:
                assert any(text in line for line in lines)


@given(st.text(max_size=40), st.integers(0, 50))
def test_a_shortened_name_keeps_its_beginning_and_its_end(text: str, width: int) -> None:
    shown = shorten_middle(text, width)
    assert cell_len(shown) <= max(width, 0)
    if shown != text and width:
        head, _, tail = shown.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


def test_names_that_differ_look_different() -> None:
    names = [f"{'x' * 20}-{number}-{'y' * 20}" for number in (1, 2)]
    columns = [Column("name"), Column("address", ColumnKind.WHOLE)]
    for width in range(20, 80):
        lines = lay_out(columns, [[name, "10.0.0.1:7070"] for name in names], width).lines
        shown = {line.text for line in lines if line.row is not None and "x" in line.text}
        if any("address" in line.text and line.row is None for line in lines):
            assert len(shown) == 2, f"in {width} columns"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_devices_at_usual_widths(width: int) -> None:
    text = _printed(ROWS, width)
    assert all(cell_len(line) <= width for line in text.split("\n"))
    for row in ROWS:
        assert row["address"] in text
        assert row["name"][-8:] in text
    assert "install the same version" in " ".join(text.split())


def test_a_wide_terminal_shows_a_line_for_each_device() -> None:
    lines = _printed([row | {"problem": None} for row in ROWS], 200).split("\n")
    assert [line.split()[0] for line in lines if line] == ["name", *(row["name"] for row in ROWS)]


def test_a_long_address_turns_the_table_into_a_list_that_has_everything() -> None:
    text = _printed([ROWS[0] | {"address": LONG_ADDRESS}], 60)
    assert f"  address: {LONG_ADDRESS}\n" in text
    assert "  version: 0.1.0\n" in text
    assert LONG_ADDRESS in _printed([ROWS[0] | {"address": LONG_ADDRESS}], 40)


def test_a_pipe_gets_a_line_for_each_device_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    output_console().print(device_table([row | {"name": "n" * 300} for row in ROWS]))
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert all("n" * 300 in line and "0.1.0" in line for line in lines[1:3])
    assert "install the same version" in lines[1]


def test_the_roles_in_certificates_are_a_column_where_there_are_certificates() -> None:
    assert "certificate" not in _printed(ROWS, 200)
    rows = [ROWS[0] | {"certified_role": "agent,client"}, *ROWS[1:]]
    assert "certificate" in _printed(rows, 250).splitlines()[0]
    assert "agent,client" in _printed(rows, 250).splitlines()[1]
