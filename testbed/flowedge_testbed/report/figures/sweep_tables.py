"""Tables of figures along the axes of a sweep: a row for each method, or a map for each method."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge_testbed.report.entries import Entry, Variant, groups, unique
from flowedge_testbed.report.figures.columns import COLUMNS, FigureColumn
from flowedge_testbed.report.markdown import table
from flowedge_testbed.report.paper import counterpart, published_map, published_sweep
from flowedge_testbed.scenario import OPTION
from flowedge_testbed.scenario_parts import ColumnName

SPEED: ColumnName = "tokens_per_s"


def axes_of(entries: Sequence[Entry]) -> list[str]:
    """Return the axes of the sweep that entries are of, maybe none."""
    return list(entries[0]["point"]) if entries else []


def axis_title(axis: str) -> str:
    """Return the words for an axis."""
    known = {"mbps": "Mbit/s", "stages": "verification stages", "latency_ms": "ms of latency"}
    return known.get(axis, axis.removeprefix(OPTION))


def swept_columns(chosen: Sequence[ColumnName], entries: Sequence[Entry]) -> list[ColumnName]:
    """Return the figures of a sweep's tables: those chosen, or tokens/s and the gain over plain decoding."""
    if chosen:
        return list(chosen)
    measured = any(entry["speedup_vs_autoregressive"] is not None for entry in entries)
    return [SPEED, "speedup_vs_autoregressive"] if measured and len(axes_of(entries)) == 1 else [SPEED]


def sweep_tables(entries: Sequence[Entry], names: Sequence[ColumnName]) -> list[str]:
    """Return the tables of a sweep along one axis or two, each figure under its title."""
    axes = axes_of(entries)
    if not axes:
        return ["Nothing is swept."]
    parts: list[str] = []
    for name in names:
        if len(axes) == 1:
            parts += [f"{COLUMNS[name].title} by {axis_title(axes[0])}", _along(entries, axes[0], name)]
        else:
            parts += _maps(entries, (axes[0], axes[1]), name)
    return parts


def _along(entries: Sequence[Entry], axis: str, name: ColumnName) -> str:
    """Return a figure of each method at each value of an axis, as a mean over datasets."""
    values = unique(entry["point"][axis] for entry in entries)
    column = COLUMNS[name]
    rows: list[list[str]] = []
    for profile, temperature, variant, own in groups(entries):
        cells = [column.cell([e for e in own if e["point"][axis] == v], entries) for v in values]
        rows.append([profile, variant.label, f"{temperature:g}", *cells])
        theirs = published_sweep(own, axis).get(counterpart(variant)) if name == SPEED else None
        if theirs is not None:
            rows.append(["", "*published*", "", *(f"*{column.show(value)}*" for value in theirs)])
    return table(["Model", "Method", "T", *(f"{value:g}" for value in values)], rows, left=2)


def _maps(entries: Sequence[Entry], axes: tuple[str, str], name: ColumnName) -> list[str]:
    """Return a map for each method: the first axis downwards, the second to the right."""
    parts: list[str] = []
    for profile, temperature, variant, own in groups(entries):
        title = f"{COLUMNS[name].title} of {variant.label}, {profile}, temperature {temperature:g}"
        parts += [title, _map(own, axes, variant, COLUMNS[name], published=name == SPEED)]
    return parts


def _map(
    entries: Sequence[Entry],
    axes: tuple[str, str],
    variant: Variant,
    column: FigureColumn,
    *,
    published: bool,
) -> str:
    theirs = published_map(entries, axes, variant) if published else {}
    down, right = ([entry["point"][axis] for entry in entries] for axis in axes)
    rows = []
    for first in unique(down):
        row = [f"{axis_title(axes[0])} {first:g}"]
        for second in unique(right):
            value = column.value(at(entries, axes, (first, second)))
            figure = theirs.get((first, second))
            row.append(column.show(value) + (f" (*{figure}*)" if figure is not None else ""))
        rows.append(row)
    note = "published in brackets" if theirs else ""
    return table([note, *(f"{axis_title(axes[1])} {value:g}" for value in unique(right))], rows)


def at(entries: Sequence[Entry], axes: tuple[str, str], point: tuple[float, float]) -> list[Entry]:
    """Return the entries at a point of two axes."""
    return [entry for entry in entries if (entry["point"][axes[0]], entry["point"][axes[1]]) == point]
