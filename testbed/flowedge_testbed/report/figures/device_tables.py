"""The tables of what each device of a pipeline did, held and sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from flowedge_testbed.report.entries import Entry, groups, unique, variant_of
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.markdown import number, table
from flowedge_testbed.scenario_parts import ColumnName


def use_table(entries: Sequence[Entry]) -> str:
    """Return how devices spent the decode time: computing / sending / waiting, in percent."""
    devices = unique(device for entry in entries for device in entry["use"])
    rows: list[list[str]] = []
    for profile, variant in unique((e["profile"], variant_of(e)) for e in entries):
        own = [e for e in variant.of(entries) if e["profile"] == profile]
        cells: list[str] = []
        for device in devices:
            used = [e["use"][device] for e in own if device in e["use"]]
            shares = [fmean(u[kind] for u in used) for kind in ("busy", "transferring", "waiting") if used]
            cells.append(" / ".join(f"{100 * share:.0f}" for share in shares))
        rows.append([profile, variant.label, *cells])
    return table(["Model", "Method", *devices], rows, left=2)


def memory_table(entries: Sequence[Entry]) -> str:
    """Return the GiB that each device holds, their sum and the tokens/s for each GiB of it."""
    known = [entry for entry in entries if entry["memory_gib"]]

    def held(own: Sequence[Entry], device: str) -> str:
        gib = [entry["memory_gib"][device] for entry in own if device in entry["memory_gib"]]
        return number(fmean(gib) if gib else None)

    return _by_device(known, "memory_gib", held, ("memory_gib", "tokens_per_s", "tokens_per_s_per_gib"))


def link_table(entries: Sequence[Entry]) -> str:
    """Return the kB that each device sends for a token of the answers, prompt included, and their sum."""

    def sent(own: Sequence[Entry], device: str) -> str:
        tokens = sum(entry["tokens"] for entry in own)
        return number(sum(entry["link_bytes"].get(device, 0) for entry in own) / tokens / 1e3, 1)

    return _by_device(entries, "link_bytes", sent, ("link_kb_per_token",))


def _by_device(
    entries: Sequence[Entry],
    field: str,
    cell: Callable[[Sequence[Entry], str], str],
    names: Sequence[ColumnName],
) -> str:
    """Return a table with a column for each device that a field of the entries has, and named figures."""
    devices = unique(device for entry in entries for device in entry[field])
    columns = [COLUMNS[name] for name in names]
    rows = [
        [
            profile,
            variant.label,
            f"{temperature:g}",
            *(cell(own, device) for device in devices),
            *(column.cell(own, entries) for column in columns),
        ]
        for profile, temperature, variant, own in groups(entries)
    ]
    return table(["Model", "Method", "T", *devices, *(column.title for column in columns)], rows, left=2)
