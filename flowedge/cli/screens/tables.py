"""Plain tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def output_console(piped_width: int) -> Console:
    """Return a console for standard output, `piped_width` columns wide where that is no terminal.

    A program that reads a table wants a row on each line.
    """
    return Console(width=None if sys.stdout.isatty() else piped_width, highlight=False)


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return a table without lines; long cells of `columns` wrap, columns of `right` are right-aligned."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right")
    return table
