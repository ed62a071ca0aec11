"""What a method loses without each of its parts."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge_testbed.report.markdown import number, table
from flowedge_testbed.report.tables import Entry, mean_of, unique
from flowedge_testbed.report.variants import variants


def parts_table(entries: Sequence[Entry], temperature: float) -> str:
    """Tokens/s of each method, and how much that is beside the first of them, the whole one."""
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    datasets = unique(entry["dataset"] for entry in mine)
    rows: list[list[str]] = []
    for profile in unique(entry["profile"] for entry in mine):
        there = [entry for entry in mine if entry["profile"] == profile]
        whole: float | None = None
        for variant in variants(there):
            own = variant.of(there)
            cells = [mean_of([e for e in own if e["dataset"] == name], "tokens_per_s") for name in datasets]
            mean = mean_of(own, "tokens_per_s")
            whole = mean if whole is None else whole
            beside = f"{100 * (mean / whole - 1):+.1f} %" if mean and whole else ""
            rows.append([profile, variant.label, *map(number, cells), number(mean), beside])
    return table(["Model", "Method", *datasets, "mean", "beside the first"], rows, left=2)
