"""The report of a run: tables in Markdown and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from flowedge_testbed.report.markdown import table
from testbed.tools.beside_llamacpp.comparisons import TABLES, Table
from testbed.tools.beside_llamacpp.figures import Figures, TableCell


def markdown(figures: Figures) -> str:
    """Return every table that has figures, each cell as best / median."""
    parts = [_section(each, figures) for each in TABLES]
    return "\n\n".join(part for part in parts if part)


def write_json(path: Path, figures: Figures, about: Mapping[str, object]) -> None:
    """Write all values with what they were measured on, in one step."""
    partial = path.with_suffix(".partial")
    content = {**about, "figures": figures.to_json()}
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _section(of: Table, figures: Figures) -> str:
    cells = [cell for cell in figures.values if cell.table == of.name]
    lines = list(dict.fromkeys(cell.line for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if not cells:
        return ""
    rows = [
        [line, *(_entry(of, figures, TableCell(of.name, line, column)) for column in columns)]
        for line in lines
    ]
    return f"{of.title}; {of.unit}, best / median:\n\n{table(['', *columns], rows)}"


def _entry(of: Table, figures: Figures, cell: TableCell) -> str:
    best, median = figures.best(cell, of.better), figures.median(cell)
    return "" if best is None or median is None else f"{best:.{of.digits}f} / {median:.{of.digits}f}"
