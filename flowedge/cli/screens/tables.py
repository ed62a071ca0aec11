"""Consoles and plain tables, which show texts from outside safely."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from flowedge.cli.output import LogStream, lines_are_logged
from flowedge.cli.screens.layout import Column, Form, lay_out
from flowedge.core.plain_text import visible_answer, visible_field

MOST_OF_CELL = 500  # characters
UNLIMITED = 100_000  # columns: where there is no terminal, each row is on one line


class TerminalConsole(Console):
    """A console that sends no command to the terminal but its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(visible_answer(segment.text), segment.style)
            for segment in buffer
        )


class PlainTable:
    """A table without rules that fits the console that prints it (see layout.py).

    Each cell is shown as one line of plain text.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = list(columns)
        self._rows: list[list[str]] = []
        self._styles: list[str] = []

    def add_column(self, column: Column) -> None:
        """Add a column on the right; the rows that are there already get an empty cell."""
        self._columns.append(column)
        for row in self._rows:
            row.append("")

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a row; cells that are missing on the right are empty."""
        shown = [visible_field(cell, MOST_OF_CELL) for cell in cells]
        self._rows.append(shown + [""] * (len(self._columns) - len(shown)))
        self._styles.append(style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        laid = lay_out(self._columns, self._rows, options.max_width)
        for shown in laid.lines:
            style = "bold" if shown.row is None else self._styles[shown.row]
            yield Text(shown.text, style, overflow="fold")
        if laid.left_out:
            yield Text(f"(not shown in {options.max_width} columns: {', '.join(laid.left_out)})", "dim")


def output_console() -> TerminalConsole:
    """Return a console for standard output.

    A program that reads a table from a pipe or a file gets a line for each row, whatever its length.
    """
    return TerminalConsole(width=None if sys.stdout.isatty() else UNLIMITED, highlight=False)


def error_console() -> TerminalConsole:
    """Return a console for standard error; lines are not wrapped where that is no terminal.

    Where the log takes the lines (see `log_lines`), there is none.
    """
    if lines_are_logged():
        return TerminalConsole(file=LogStream(), force_terminal=False, width=UNLIMITED, highlight=False)
    return TerminalConsole(stderr=True, width=None if sys.stderr.isatty() else UNLIMITED, highlight=False)


def line(text: str, style: str = "") -> Text:
    """Return a line that is not read as markup."""
    return Text(visible_field(text), style=style)


def plain_table(*columns: str | Column, right: Sequence[str] = ()) -> PlainTable:
    """Return a table of names in `columns` and, to the right of these, of numbers in the columns `right`."""
    left = [column if isinstance(column, Column) else Column(visible_field(column)) for column in columns]
    return PlainTable([*left, *(Column(visible_field(title), Form.WHOLE, right=True) for title in right)])
