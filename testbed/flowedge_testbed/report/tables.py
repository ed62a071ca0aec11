"""The tables of a report in the form of the FlowSpec paper's, with further columns."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from flowedge_testbed.report.entries import Entry, mean_of, unique, variant_of, variants
from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.paper import counterpart, model_key, published, temperature_key

_FIGURES = ("ξ", "SR", "×AR")  # tokens/s, and speedup over naive_pp and over autoregressive decoding
_SPEEDUPS = ("speedup_vs_naive_pp", "speedup_vs_autoregressive")


def main_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s and speedups for each dataset, with the paper's beneath (the paper's table 1)."""
    datasets = unique(entry["dataset"] for entry in entries)
    columns = [f"{name} {unit}" for name in [*datasets, "mean"] for unit in _FIGURES]
    header = ["Model", "Method", *columns, "mean ξ without looping"]
    rows: list[list[str]] = []
    for profile in unique(entry["profile"] for entry in entries):
        mine = [e for e in entries if e["profile"] == profile and e["temperature"] == temperature]
        for variant in variants(mine):
            own = {entry["dataset"]: entry for entry in variant.of(mine)}
            every = list(own.values())
            cells = [cell for name in datasets for cell in _figures([own[name]] if name in own else [])]
            varied = number(mean_of(_with_varied(every), "tokens_per_s_without_looping"))
            rows.append([profile, variant.label, *cells, *_figures(every), varied])
            paper = published(
                mine,
                "table1_main",
                temperature_key(temperature),
                model_key(profile),
                counterpart(variant),
            )
            if paper is not None:
                rows.append(["", "*in the paper*", *_published(paper, [*datasets, "mean"]), ""])
    return table(header, rows, left=2)


def _figures(entries: Sequence[Entry]) -> list[str]:
    """Return the cells of a dataset's entry, or of the mean of several."""
    return [number(mean_of(entries, "tokens_per_s")), *(times(mean_of(entries, name)) for name in _SPEEDUPS)]


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
    header = ["Method", *units, *_FIGURES[1:]]
    rows: list[list[str]] = []
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    for variant in variants(mine):
        own = variant.of(mine)
        cells: list[str] = []
        for name in datasets:
            entry = next((e for e in own if e["dataset"] == name), None)
            cells += (
                ["", ""]
                if entry is None
                else [number(entry["tokens_per_s"]), number(entry["latency_ms"] / 1e3)]
            )
        latency = mean_of(own, "latency_ms")
        cells += [number(mean_of(own, "tokens_per_s")), number(None if latency is None else latency / 1e3)]
        rows.append([variant.label, *cells, *_figures(own)[1:]])
        paper = published(
            own, "table2_ablation_llama2_7b", temperature_key(temperature), counterpart(variant)
        )
        if paper is not None:
            rows.append(["*in the paper*", *_published_ablation(paper, [*datasets, "mean"]), ""])
    return table(header, rows)


def _published_ablation(published: Any, columns: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in columns:
        speed, latency = published["tokens_per_s"].get(name), published["latency_s"].get(name)
        cells += [f"*{number(speed)}*" if speed else "", f"*{number(latency)}*" if latency else ""]
    return [*cells, f"*{times(published['speedup_mean'])}*"]


def repeat_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s of each seed, their mean and standard deviation (the paper's table 3)."""
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    count = max((len(entry["tokens_per_s_by_seed"]) for entry in mine), default=0)
    compared = ["paper"] if all(entry["emulated"] for entry in mine) else []
    runs = [f"run {i + 1}" for i in range(count)]
    header = ["Model", "Method", "dataset", *runs, "mean", "SD", *compared, *_FIGURES[1:]]
    rows: list[list[str]] = []
    for entry in mine:
        values = entry["tokens_per_s_by_seed"]
        paper = published(
            mine,
            "table3_mt_bench_three_runs_mean",
            temperature_key(temperature),
            model_key(entry["profile"]),
            counterpart(variant_of(entry)),
        )
        shown = paper if entry["dataset"] == "mt_bench" else None
        known = [value for value in values if value is not None]
        rows.append(
            [
                entry["profile"],
                variant_of(entry).label,
                entry["dataset"],
                *(number(value, 3) for value in values),
                number(fmean(known) if known else None, 3),
                number(stdev(known) if len(known) > 1 else None, 3),
                *("" if shown is None else f"*{number(shown, 3)}*" for _ in compared),
                *(times(entry[name]) for name in _SPEEDUPS),
            ]
        )
    return table(header, rows, left=3)


def parts_table(entries: Sequence[Entry], temperature: float) -> str:
    """Return tokens/s of each method, and its difference from the first method, which is the whole one."""
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
