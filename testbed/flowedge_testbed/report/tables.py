"""The tables of a report, in the form of the FlowSpec paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from flowedge_testbed.report.markdown import number, table, times
from flowedge_testbed.report.paper import COUNTERPARTS, lookup, model_key, temperature_key
from flowedge_testbed.report.variants import Variant, variant_of, variants

Entry = dict[str, Any]


def unique(values: Iterable[Any]) -> list[Any]:
    """The values in the order in which they first come."""
    return list(dict.fromkeys(values))


def mean_of(entries: Sequence[Entry], name: str) -> float | None:
    """The mean of a figure over entries; None when one has none."""
    values = [entry[name] for entry in entries]
    return fmean(values) if values and all(value is not None for value in values) else None


def published(entries: Sequence[Entry], *keys: str) -> Any:
    """The paper's figure under these keys; None where there is none, or the entries emulate no devices."""
    return lookup(*keys) if all(entry["emulated"] for entry in entries) else None


def counterpart(variant: Variant) -> str:
    """The paper's name of a method as published; empty where it has none."""
    return COUNTERPARTS.get(variant.method, "") if variant.plain else ""


def main_table(entries: Sequence[Entry], temperature: float) -> str:
    """Tokens/s and speedup over naive_pp for each dataset, with the paper's beneath (the paper's table 1)."""
    datasets = unique(entry["dataset"] for entry in entries)
    header = ["Model", "Method", *(f"{name} {unit}" for name in [*datasets, "mean"] for unit in ("ξ", "SR"))]
    rows: list[list[str]] = []
    for profile in unique(entry["profile"] for entry in entries):
        mine = [e for e in entries if e["profile"] == profile and e["temperature"] == temperature]
        for variant in variants(mine):
            own = {entry["dataset"]: entry for entry in variant.of(mine)}
            cells = [c for name in datasets for c in _pair(own.get(name))]
            rows.append([profile, variant.label, *cells, *_mean_pair(list(own.values()))])
            paper = published(
                mine,
                "table1_main",
                temperature_key(temperature),
                model_key(profile),
                counterpart(variant),
            )
            if paper is not None:
                rows.append(["", "*in the paper*", *_published(paper, [*datasets, "mean"])])
    return table(header, rows, left=2)


def _pair(entry: Entry | None) -> tuple[str, str]:
    if entry is None:
        return "", ""
    return number(entry["tokens_per_s"]), times(entry["speedup_vs_naive_pp"])


def _mean_pair(entries: Sequence[Entry]) -> tuple[str, str]:
    return number(mean_of(entries, "tokens_per_s")), times(mean_of(entries, "speedup_vs_naive_pp"))


def _published(published: Any, columns: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in columns:
        speed, speedup = published["tokens_per_s"].get(name), published["speedup"].get(name)
        cells += [f"*{number(speed)}*" if speed else "", f"*{times(speedup)}*" if speedup else ""]
    return cells


def ablation_table(entries: Sequence[Entry], temperature: float) -> str:
    """Tokens/s and latency of each step from naive_pp to FlowSpec (the paper's table 2)."""
    datasets = unique(entry["dataset"] for entry in entries)
    header = ["Method", *(f"{d} {unit}" for d in [*datasets, "mean"] for unit in ("ξ", "latency s")), "SR"]
    rows: list[list[str]] = []
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    for variant in variants(mine):
        own = variant.of(mine)
        cells: list[str] = []
        for name in datasets:
            entry = next((e for e in own if e["dataset"] == name), None)
            cells += ["", ""] if entry is None else [_speed(entry), number(entry["latency_ms"] / 1e3)]
        latency = mean_of(own, "latency_ms")
        cells += [number(mean_of(own, "tokens_per_s")), number(None if latency is None else latency / 1e3)]
        rows.append([variant.label, *cells, times(mean_of(own, "speedup_vs_naive_pp"))])
        paper = published(
            own, "table2_ablation_llama2_7b", temperature_key(temperature), counterpart(variant)
        )
        if paper is not None:
            rows.append(["*in the paper*", *_published_ablation(paper, [*datasets, "mean"])])
    return table(header, rows)


def _speed(entry: Entry) -> str:
    return number(entry["tokens_per_s"])


def _published_ablation(published: Any, columns: Sequence[str]) -> list[str]:
    cells: list[str] = []
    for name in columns:
        speed, latency = published["tokens_per_s"].get(name), published["latency_s"].get(name)
        cells += [f"*{number(speed)}*" if speed else "", f"*{number(latency)}*" if latency else ""]
    return [*cells, f"*{times(published['speedup_mean'])}*"]


def repeat_table(entries: Sequence[Entry], temperature: float) -> str:
    """Tokens/s of each seed, their mean and standard deviation (the paper's table 3)."""
    mine = [entry for entry in entries if entry["temperature"] == temperature]
    count = max((len(entry["tokens_per_s_by_seed"]) for entry in mine), default=0)
    compared = ["paper"] if all(entry["emulated"] for entry in mine) else []
    header = ["Model", "Method", "dataset", *(f"run {i + 1}" for i in range(count)), "mean", "SD", *compared]
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
        spread = stdev(values) if len(values) > 1 else 0.0
        rows.append(
            [
                entry["profile"],
                variant_of(entry).label,
                entry["dataset"],
                *(number(value, 3) for value in values),
                number(fmean(values), 3),
                f"{spread:.3f}",
                *("" if shown is None else f"*{number(shown, 3)}*" for _ in compared),
            ]
        )
    return table(header, rows, left=3)


def sweep_table(entries: Sequence[Entry], axis: str, published: dict[str, list[float]]) -> str:
    """Tokens/s, as a mean over datasets, of each method at each value of an axis.

    `published` has the paper's figures by method, in the order of the values.
    """
    values = unique(entry["point"][axis] for entry in entries)
    rows: list[list[str]] = []
    for profile in unique(entry["profile"] for entry in entries):
        for variant in variants(entries):
            own = [e for e in variant.of(entries) if e["profile"] == profile]
            cells = [
                number(mean_of([e for e in own if e["point"][axis] == v], "tokens_per_s")) for v in values
            ]
            rows.append([profile, variant.label, *cells])
            theirs = published.get(counterpart(variant))
            if theirs is not None and len(theirs) == len(values):
                rows.append(["", "*in the paper*", *(f"*{number(value)}*" for value in theirs)])
    return table(["Model", "Method", *(f"{value:g}" for value in values)], rows, left=2)


def depth_table(entries: Sequence[Entry], variant: Variant) -> str:
    """Tokens/s of one method by the depth of the first tree (rows) and of those merged into it (columns)."""
    mine = variant.of(entries)
    first = unique(entry["point"]["option.depth"] for entry in mine)
    merged = unique(entry["point"]["option.expand_depth"] for entry in mine)
    rows = []
    for depth in first:
        cells = [
            number(
                mean_of(
                    [e for e in mine if _depths(e) == (depth, expand_depth)],
                    "tokens_per_s",
                )
            )
            for expand_depth in merged
        ]
        rows.append([f"d0 {depth:g}", *cells])
    return table([variant.label, *(f"d_exp {value:g}" for value in merged)], rows)


def _depths(entry: Entry) -> tuple[float, float]:
    return entry["point"]["option.depth"], entry["point"]["option.expand_depth"]


def detail_table(entries: Sequence[Entry]) -> str:
    """Acceptance and latency of each method, as means over datasets and points."""
    header = [
        "Model", "Method", "T", "tokens/s", "vs naive_pp", "vs autoregressive", "tokens a round",
        "a segment", "flushes", "TTFT ms", "ITL p50 ms", "ITL p99 ms", "rows for nothing", "J/token",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for profile, temperature, variant in unique(
        (e["profile"], e["temperature"], variant_of(e)) for e in entries
    ):
        own = [e for e in variant.of(entries) if (e["profile"], e["temperature"]) == (profile, temperature)]
        computed = sum(e["rows_computed"] for e in own)
        nothing = sum(e["rows_for_nothing"] for e in own) / computed if computed else 0.0
        rows.append(
            [
                profile,
                variant.label,
                f"{temperature:g}",
                number(mean_of(own, "tokens_per_s")),
                times(mean_of(own, "speedup_vs_naive_pp")),
                times(mean_of(own, "speedup_vs_autoregressive")),
                number(mean_of(own, "acceptance_length")),
                number(mean_of(own, "acceptance_per_segment")),
                str(sum(e["flushes"] for e in own)),
                number(mean_of(own, "ttft_ms"), 0),
                number(mean_of(own, "itl_p50_ms"), 0),
                number(mean_of(own, "itl_p99_ms"), 0),
                f"{100 * nothing:.0f} %",
                number(mean_of(own, "energy_j_per_token"), 1),
            ]
        )
    return table(header, rows, left=2)


def use_table(entries: Sequence[Entry]) -> str:
    """How the devices spent the decode time: computing / sending / waiting, in percent."""
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
