"""Tables that fit the terminal, and consoles that show texts from outside safely.

A table has its columns side by side or, where these do not fit, becomes a list. Addresses and numbers are
never broken over lines. A name is shortened in its middle, because the ends of names tell devices apart.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from flowedge.cli.output import LogStream, lines_are_logged, wrap_words
from flowedge.core.plain_text import visible_answer, visible_field

MOST_OF_CELL = 500  # characters
UNLIMITED = 100_000  # columns: where there is no terminal, each row is on one line
GAP = 2  # columns of the terminal between two columns of a table
ELLIPSIS = "…"
_GOOD_NAME = 20  # width to which names are shortened before columns are left out
_LEAST_NAME = 16  # width to which names are shortened before the table becomes a list


class ColumnKind(Enum):
    """How the cells of a column may be changed when the table does not fit."""

    WHOLE = "whole"  # an address or a number: never changed
    NAME = "name"  # shortened in the middle
    PROSE = "prose"  # wrapped between words, on lines of its own below the row


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading, which may be empty.
        drop: columns are left out in the order of this number, the highest first; 0: never.
    """

    title: str
    form: ColumnKind = ColumnKind.NAME
    right: bool = False
    drop: int = 0


@dataclass(frozen=True)
class LaidLine:
    """A line of a table that was laid out; `row` is the index of its row, None for the heading."""

    text: str
    row: int | None


@dataclass(frozen=True)
class LaidTable:
    """A table that was laid out; `left_out` are the titles of the columns that did not fit."""

    lines: tuple[LaidLine, ...]
    left_out: tuple[str, ...] = ()


def lay_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> LaidTable:
    """Lay out a table in `width` columns of a terminal.

    Columns are left out as `Column.drop` says, as long as there is a choice. If the others do not fit
    either, the table becomes a list, which has every column. A line is longer than `width` only where a
    single cell that must not be changed is.

    Args:
        rows: for each row, the text of each column, without line breaks.
    """
    shown = list(range(len(columns)))
    while True:
        left_out = [index for index in range(len(columns)) if index not in shown]
        floors = (_GOOD_NAME,) if any(columns[index].drop for index in shown) else (_GOOD_NAME, _LEAST_NAME)
        for floor in floors:
            lines = _grid([columns[index] for index in shown], _shown_columns(rows, shown), width, floor)
            if lines is not None:
                return LaidTable(lines, _titles(columns, rows, left_out))
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            return LaidTable(_list(columns, rows, width))
        empty = [index for index in droppable if not any(row[index] for row in rows)]
        shown.remove(max(empty or droppable, key=lambda index: columns[index].drop))


def shorten_middle(text: str, width: int) -> str:
    """Return a text of at most `width` columns of a terminal, with its beginning and its end."""
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    head, tail = "", ""
    left = width - cell_len(ELLIPSIS)
    begin, end = 0, len(text)
    while begin < end:
        at_end = cell_len(tail) <= cell_len(head)
        character = text[end - 1] if at_end else text[begin]
        if cell_len(character) > left:
            break
        left -= cell_len(character)
        if at_end:
            tail, end = character + tail, end - 1
        else:
            head, begin = head + character, begin + 1
    return f"{head}{ELLIPSIS}{tail}"


def _shown_columns(rows: Sequence[Sequence[str]], shown: Sequence[int]) -> list[list[str]]:
    return [[row[index] for index in shown] for row in rows]


def _titles(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], left_out: Sequence[int]
) -> tuple[str, ...]:
    return tuple(columns[index].title for index in left_out if any(row[index] for row in rows))


def _grid(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, floor: int
) -> tuple[LaidLine, ...] | None:
    """Lay columns out side by side; None if they do not fit with names of `floor` columns.

    Columns of prose go below their rows if they do not fit beside the others.
    """
    everything = list(range(len(columns)))
    beside = [index for index in everything if columns[index].form is not ColumnKind.PROSE]
    for shown in (everything, beside):
        widths = _widths([columns[index] for index in shown], _shown_columns(rows, shown), width, floor)
        if widths is None:
            continue
        chosen = [columns[index] for index in shown]
        heading = [column.title for column in chosen]
        lines = [LaidLine(_line(chosen, heading, widths), None)] if any(heading) else []
        for number, row in enumerate(rows):
            lines.append(LaidLine(_line(chosen, [row[index] for index in shown], widths), number))
            below = [row[index] for index in everything if index not in shown and row[index]]
            lines += [LaidLine(text, number) for prose in below for text in wrap_words(prose, width, "  ")]
        return tuple(lines)
    return None


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, floor: int
) -> list[int] | None:
    """Return the width of each column; None if they do not fit with names shortened to `floor`."""
    cells = [[column.title, *(row[index] for row in rows)] for index, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in cells]
    excess = sum(widths) + GAP * (len(columns) - 1) - width
    least = [
        _least_width(texts, floor) if column.form is ColumnKind.NAME else natural
        for column, texts, natural in zip(columns, cells, widths, strict=True)
    ]
    while excess > 0:
        spare = [index for index in range(len(columns)) if widths[index] > least[index]]
        if not spare:
            return None
        widths[max(spare, key=lambda index: widths[index])] -= 1
        excess -= 1
    return widths


def _least_width(cells: Sequence[str], floor: int) -> int:
    """Return the smallest width from `floor` on in which different cells of a column still look different.

    cells: the title, which is never shortened, and the texts.
    """
    natural = max(map(cell_len, cells))
    least = max(floor, cell_len(cells[0]))
    different = len(set(cells))
    while least < natural and len({shorten_middle(text, least) for text in cells}) < different:
        least += 1
    return min(least, natural)


def _line(columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for column, text, width in zip(columns, texts, widths, strict=True):
        shown = shorten_middle(text, width)
        padding = " " * (width - cell_len(shown))
        cells.append(padding + shown if column.right else shown + padding)
    return (" " * GAP).join(cells).rstrip()


def _list(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> tuple[LaidLine, ...]:
    """Return a block for each row: its first cell, and a line "title: text" for each other cell."""
    lines: list[LaidLine] = []
    for number, row in enumerate(rows):
        first = [_shortened(columns[0], row[0], width)]
        if columns[0].form is ColumnKind.PROSE:
            first = wrap_words(row[0], width, "    ", first="")
        block = [*([""] if lines else []), *first]
        for column, text in zip(columns[1:], row[1:], strict=True):
            block += _entry(column, text, width) if text else []
        lines += [LaidLine(text, number) for text in block]
    return tuple(lines)


def _entry(column: Column, text: str, width: int) -> list[str]:
    title = f"  {column.title}: " if column.title else "  "
    if cell_len(title) + cell_len(text) <= width:
        return [title + text]
    if column.form is ColumnKind.PROSE:
        return wrap_words(title + text, width, "    ", first="")
    heading = wrap_words(f"{column.title}:", width, "    ", first="  ") if column.title else []
    value = _shortened(column, text, width - 4)
    return [*heading, " " * max(0, min(4, width - cell_len(value))) + value]


def _shortened(column: Column, text: str, width: int) -> str:
    return shorten_middle(text, width) if column.form is ColumnKind.NAME else text


class TerminalConsole(Console):
    """A console that sends no command to the terminal but its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(visible_answer(segment.text), segment.style)
            for segment in buffer
        )


class PlainTable:
    """A table without rules that fits the console that prints it (see `lay_out`).

    Each cell is shown as one line of plain text.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = list(columns)
        self._rows: list[list[str]] = []
        self._styles: list[str] = []

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
    if not sys.stderr.isatty():
        return TerminalConsole(stderr=True, width=UNLIMITED, highlight=False)
    return TerminalConsole(stderr=True, force_terminal=_has_columns(), highlight=False)


def _has_columns() -> bool | None:
    """Return False for a terminal of no columns, as of `ssh -tt` and of containers, which is a log."""
    try:
        return None if os.get_terminal_size(sys.stderr.fileno()).columns else False
    except OSError:
        return None


def line(text: str, style: str = "") -> Text:
    """Return a line that is not read as markup."""
    return Text(visible_field(text), style=style)


def plain_table(*columns: str | Column, right: Sequence[str] = ()) -> PlainTable:
    """Return a table of names in `columns` and, to the right of these, of numbers in the columns `right`."""
    left = [column if isinstance(column, Column) else Column(visible_field(column)) for column in columns]
    return PlainTable(
        [*left, *(Column(visible_field(title), ColumnKind.WHOLE, right=True) for title in right)]
    )


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on standard output."""
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*row)
    output_console().print(table)
