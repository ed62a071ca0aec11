"""The table of agents, for a person."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowedge.cli.screens.device_rows import Row

_PIPED_WIDTH = 220  # columns; a program that reads the table wants a device a line


def console() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def device_table(rows: Sequence[Row]) -> Table:
    """A line an agent; the link's column is there when links were measured."""
    with_links = any("link" in row for row in rows)
    table = Table(box=None, header_style="bold")
    columns = ["name", "kind", "address", "memory free", "role", "block", "version", "round trip"]
    for column in [*columns, *(["link"] if with_links else []), ""]:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [row.get("name", "?"), row.get("kind", "?"), _address(row), _memory(row)]
        cells += [row.get("role", "?"), _block(row), row.get("version", "?"), _round_trip(row)]
        cells += [_link(row["link"]) if "link" in row else ""] if with_links else []
        table.add_row(*(escape(str(cell)) for cell in [*cells, _remarks(row)]), style=_style(row))
    return table


def _address(row: Row) -> str:
    others = len(row["addresses"]) - 1
    return f"{row['address']} (+{others})" if others else str(row["address"])


def _memory(row: Row) -> str:
    if "memory_total" not in row:
        return "?"
    total = f"{row['memory_total'] / 2**30:.1f} GiB"
    available = row.get("memory_available")
    return total if available is None else f"{available / 2**30:.1f} of {total}"


def _block(row: Row) -> str:
    start, stop = row.get("layers", (0, 0))
    if stop > start:
        return f"{row['model']} [{start}, {stop})"
    if row.get("stage_addresses"):
        return f"{row['model']} over {len(row['stage_addresses'])} stages"
    return ""


def _round_trip(row: Row) -> str:
    seconds = row.get("round_trip_s")
    return "?" if seconds is None else f"{1000 * seconds:.1f} ms"


def _link(link: dict[str, Any]) -> str:
    if link["bits_per_s"] is None:
        return str(link["problem"])
    return f"{link['bits_per_s'] / 1e6:.0f} Mbit/s to {link['to']}"


def _remarks(row: Row) -> str:
    stale = ["stale: nothing heard of it any more"] if row["stale"] else []
    return "; ".join([*stale, *row["duplicates"], *([row["problem"]] if row["problem"] else [])])


def _style(row: Row) -> str:
    if row["stale"]:
        return "dim"
    return "yellow" if row["problem"] or row["duplicates"] else ""
