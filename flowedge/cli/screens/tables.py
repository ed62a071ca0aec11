"""Consoles and plain tables, which show texts from outside safely."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from flowedge.core.visible_text import visible_answer, visible_field

MOST_OF_CELL = 500  # characters


class TerminalConsole(Console):
    """A console that sends no command to the terminal but its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(visible_answer(segment.text), segment.style)
            for segment in buffer
        )


class FieldTable(Table):
    """A table whose cells are plain texts, each shown as one line."""

    def add_row(self, *cells: object, **options: object) -> None:
        shown = (Text(visible_field(cell, MOST_OF_CELL)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*shown, **options)  # type: ignore[arg-type]


def output_console(piped_width: int) -> TerminalConsole:
    """Return a console for standard output, `piped_width` columns wide where that is no terminal.

    A program that reads a table wants a row on each line.
    """
    return TerminalConsole(width=None if sys.stdout.isatty() else piped_width, highlight=False)


def error_console() -> TerminalConsole:
    """Return a console for standard error."""
    return TerminalConsole(stderr=True, highlight=False)


def line(text: str, style: str = "") -> Text:
    """Return a line that is not read as markup."""
    return Text(visible_field(text), style=style)


def plain_table(*columns: str, right: Sequence[str] = ()) -> FieldTable:
    """Return a table without lines; long cells of `columns` wrap, columns of `right` are right-aligned."""
    table = FieldTable(box=None, header_style="bold")
    for column in columns:
        table.add_column(line(column), overflow="fold")
    for column in right:
        table.add_column(line(column), justify="right")
    return table
