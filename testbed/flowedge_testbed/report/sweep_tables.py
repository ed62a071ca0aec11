"""The tables of a report along the axes of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowedge_testbed.report.entries import Entry, Variant, mean_of, unique, variants
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.paper import counterpart


def sweep_tables(entries: Sequence[Entry], axis: str, published: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the tables of an axis: tokens/s, and the speedup over autoregressive decoding if that was run.

    Args:
        published: the paper's tokens/s by method, in the order of the axis.
    """
    tables = [sweep_table(entries, axis, "tokens_per_s", published)]
    if any(entry["speedup_vs_autoregressive"] is not None for entry in entries):
        speedups = sweep_table(entries, axis, "speedup_vs_autoregressive", {})
        tables += ["Speedup over autoregressive decoding", speedups]
    return tables


def sweep_table(
    entries: Sequence[Entry], axis: str, figure: str, published: Mapping[str, Sequence[float]]
) -> str:
    """Return a figure of each method at each value of an axis, as a mean over datasets."""
    values = unique(entry["point"][axis] for entry in entries)
    shown = times if figure.startswith("speedup") else number
    rows: list[list[str]] = []
    for profile in unique(entry["profile"] for entry in entries):
        for variant in variants(entries):
            own = [e for e in variant.of(entries) if e["profile"] == profile]
            cells = [shown(mean_of([e for e in own if e["point"][axis] == v], figure)) for v in values]
            rows.append([profile, variant.label, *cells])
            theirs = published.get(counterpart(variant))
            if theirs is not None and len(theirs) == len(values):
                rows.append(["", "*published*", *(f"*{shown(value)}*" for value in theirs)])
    return table(["Model", "Method", *(f"{value:g}" for value in values)], rows, left=2)


def depth_table(entries: Sequence[Entry], variant: Variant) -> str:
    """Return tokens/s of a method by the depth of the first tree (rows) and of merged trees (columns)."""
    mine = variant.of(entries)
    first = unique(entry["point"]["option.depth"] for entry in mine)
    merged = unique(entry["point"]["option.expand_depth"] for entry in mine)
    rows = []
    for depth in first:
        cells = [
            number(mean_of([e for e in mine if _depths(e) == (depth, expand_depth)], "tokens_per_s"))
            for expand_depth in merged
        ]
        rows.append([f"d0 {depth:g}", *cells])
    return table([variant.label, *(f"d_exp {value:g}" for value in merged)], rows)


def _depths(entry: Entry) -> tuple[float, float]:
    return entry["point"]["option.depth"], entry["point"]["option.expand_depth"]
