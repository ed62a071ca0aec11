"""The tables of a report: in the form of the FlowSpec paper's, and of what explains a speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Any

from flowedge_testbed.report.entries import (
    Entry,
    groups,
    mean_of,
    place_of,
    unique,
    variant_of,
    variants,
)
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.figures.spread import ratio_half_width
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.paper import counterpart, model_key, published, temperature_key
from flowedge_testbed.results import added
from flowedge_testbed.scenario_parts import ColumnName

_FIGURES = ("ξ", "SR", "×AR")  # tokens/s, and speedup over naive_pp and over autoregressive decoding
_SPEED_AND_LATENCY: tuple[ColumnName, ...] = ("tokens_per_s", "latency_s")
_SPEEDUPS: tuple[ColumnName, ...] = ("speedup_vs_naive_pp", "speedup_vs_autoregressive")


def main_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s and speedups for each dataset, with the paper's beneath (the paper's table 1)."""
    datasets = unique(entry["dataset"] for entry in entries)
    columns = [f"{name} {unit}" for name in [*datasets, "mean"] for unit in _FIGURES]
    header = ["Model", "Method", *columns, "mean ξ without looping"]
    rows: list[list[str]] = []
    for place, mine in _by_place(entries, temperature):
        for variant in variants(mine):
            own = {entry["dataset"]: entry for entry in variant.of(mine)}
            every = list(own.values())
            cells = [cell for name in datasets for cell in _figures([own[name]] if name in own else [], mine)]
            varied = number(mean_of(_with_varied(every), "tokens_per_s_without_looping"))
            rows.append([place, variant.label, *cells, *_figures(every, mine), varied])
            paper = published(
                mine,
                "table1_main",
                temperature_key(temperature),
                model_key(place),
                counterpart(variant),
            )
            if paper is not None:
                rows.append(["", "*in the paper*", *_published(paper, [*datasets, "mean"]), ""])
    return table(header, rows, left=2)


def _by_place(entries: Sequence[Entry], temperature: float) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the entries of each place at a temperature, with the place's name."""
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    for place in unique(map(place_of, mine)):
        yield place, [entry for entry in mine if place_of(entry) == place]


def _figures(entries: Sequence[Entry], among: Sequence[Entry]) -> list[str]:
    """Return the cells of a dataset's entry, or of the mean of several, with the baselines in `among`."""
    return [COLUMNS[name].cell(entries, among) for name in ("tokens_per_s", *_SPEEDUPS)]


def _with_varied(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with an answer that does not loop."""
    return [entry for entry in entries if entry["looping_requests"] < entry["requests"]]


def _published(published: Any, columns: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in columns:
        speed, speedup = published["tokens_per_s"].get(name), published["speedup"].get(name)
        cells += [f"*{number(speed)}*" if speed else "", f"*{times(speedup)}*" if speedup else "", ""]
    return cells


def ablation_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s and latency of each step from naive_pp to FlowSpec (the paper's table 2)."""
    datasets = unique(entry["dataset"] for entry in entries)
    units = [f"{name} {unit}" for name in [*datasets, "mean"] for unit in ("ξ", "latency s")]
    header = ["Model", "Method", *units, *_FIGURES[1:]]
    rows: list[list[str]] = []
    for place, there, variant, own in (
        (place, mine, variant, variant.of(mine))
        for place, mine in _by_place(entries, temperature)
        for variant in variants(mine)
    ):
        cells: list[str] = []
        for part in [*([e for e in own if e["dataset"] == name] for name in datasets), own]:
            cells += [COLUMNS[name].cell(part, there) for name in _SPEED_AND_LATENCY]
        rows.append([place, variant.label, *cells, *_figures(own, there)[1:]])
        paper = published(
            own, "table2_ablation_llama2_7b", temperature_key(temperature), counterpart(variant)
        )
        if paper is not None:
            rows.append(["", "*in the paper*", *_published_ablation(paper, [*datasets, "mean"]), ""])
    return table(header, rows, left=2)


def _published_ablation(published: Any, columns: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in columns:
        speed, latency = published["tokens_per_s"].get(name), published["latency_s"].get(name)
        cells += [f"*{number(speed)}*" if speed else "", f"*{number(latency)}*" if latency else ""]
    return [*cells, f"*{times(published['speedup_mean'])}*"]


def repeat_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s and latency of each seed, their means and standard deviations (the paper's table 3)."""
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    count = max((len(entry["tokens_per_s_by_seed"]) for entry in mine), default=0)
    each = [*(f"run {i + 1}" for i in range(count)), "mean", "SD"]
    units = [f"{name} {unit}" for name in each for unit in ("ξ", "s")]
    rows: list[list[str]] = []
    for entry in mine:
        figures = _repeated(entry, count)
        rows.append(
            [
                place_of(entry),
                variant_of(entry).label,
                entry["dataset"],
                *(number(value, 3) for value in figures),
                *(times(entry[name]) for name in _SPEEDUPS),
            ]
        )
        paper = published(
            mine,
            "table3_mt_bench_three_runs",
            temperature_key(temperature),
            model_key(entry["profile"]),
            counterpart(variant_of(entry)),
        )
        if paper is not None and entry["dataset"] == "mt_bench" and count == len(paper["tokens_per_s"]):
            theirs = _with_spread(paper["tokens_per_s"], paper["latency_s"])
            rows.append(["", "*in the paper*", "", *(f"*{number(value, 3)}*" for value in theirs), "", ""])
    return table(["Model", "Method", "dataset", *units, *_FIGURES[1:]], rows, left=3)


def _repeated(entry: Entry, count: int) -> list[float | None]:
    """Return tokens/s and seconds of latency of each seed, then their means, then their deviations."""
    speeds = [*entry["tokens_per_s_by_seed"], *[None] * count][:count]
    latencies = [value / 1e3 for value in entry["latency_ms_by_seed"]]
    return _with_spread(speeds, [*latencies, *[None] * count][:count])


def _with_spread(speeds: Sequence[float | None], latencies: Sequence[float | None]) -> list[float | None]:
    found: list[float | None] = [value for pair in zip(speeds, latencies, strict=True) for value in pair]
    known = [[value for value in values if value is not None] for values in (speeds, latencies)]
    found += [fmean(values) if values else None for values in known]
    return found + [stdev(values) if len(values) > 1 else None for values in known]


def parts_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s of each method, and its difference from the first method, which is the whole one."""
    datasets = unique(entry["dataset"] for entry in entries)
    rows: list[list[str]] = []
    for place, there in _by_place(entries, temperature):
        every = variants(there)
        first = every[0].of(there)
        for variant in every:
            own = variant.of(there)
            parts = [*([e for e in own if e["dataset"] == name] for name in datasets), own]
            cells = [COLUMNS["tokens_per_s"].cell(part, there) for part in parts]
            rows.append([place, variant.label, *cells, _beside(own, first)])
    return table(["Model", "Method", *datasets, "mean", "beside the first"], rows, left=2)


def _beside(own: Sequence[Entry], first: Sequence[Entry]) -> str:
    """Return how much faster a method is than the first, in percent."""
    mean, whole = mean_of(own, "tokens_per_s"), mean_of(first, "tokens_per_s")
    if not mean or not whole:
        return ""
    width = None if own == first else ratio_half_width(own, first)
    return f"{100 * (mean / whole - 1):+.1f}" + ("" if width is None else f" ±{100 * width:.1f}") + " %"


def columns_table(entries: Sequence[Entry], names: Sequence[ColumnName]) -> str:
    """Return the named figures of each method, as means over datasets and points."""
    columns = [COLUMNS[name] for name in names]
    rows = [
        [profile, variant.label, f"{temperature:g}", *(column.cell(own, entries) for column in columns)]
        for profile, temperature, variant, own in groups(entries)
    ]
    return table(["Model", "Method", "T", *(column.title for column in columns)], rows, left=2)


def accepted_table(entries: Sequence[Entry]) -> str:
    """Return the share of the returned segments by the tokens that came out with each, in percent."""
    most = max((len(entry["segments_by_tokens"]) for entry in entries), default=0)
    rows = []
    for profile, temperature, variant, own in groups(entries):
        shares = accepted_shares(own)
        cells = [f"{100 * share:.1f}" for share in shares] + [""] * (most - len(shares))
        rows.append([profile, variant.label, f"{temperature:g}", *cells])
    return table(["Model", "Method", "T", *map(str, range(most))], rows, left=2)


def accepted_shares(entries: Sequence[Entry]) -> list[float]:
    """Return the share of the returned segments with which 0, 1, 2, ... tokens came out."""
    counts = added(entry["segments_by_tokens"] for entry in entries)
    return [count / sum(counts) for count in counts]
