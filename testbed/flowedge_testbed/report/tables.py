"""The tables of a report: in the form of the FlowSpec paper's, along sweeps, and of what explains a speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from flowedge_testbed.report.draw_places import drawn_on
from flowedge_testbed.report.entries import Entry, Variant, mean_of, place_of, unique, variant_of, variants
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
    for place, mine in _by_place(entries, temperature):
        for variant in variants(mine):
            own = {entry["dataset"]: entry for entry in variant.of(mine)}
            every = list(own.values())
            cells = [cell for name in datasets for cell in _figures([own[name]] if name in own else [])]
            varied = number(mean_of(_with_varied(every), "tokens_per_s_without_looping"))
            rows.append([place, variant.label, *cells, *_figures(every), varied])
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
    header = ["Model", "Method", *units, *_FIGURES[1:]]
    rows: list[list[str]] = []
    for place, variant, own in (
        (place, variant, variant.of(mine))
        for place, mine in _by_place(entries, temperature)
        for variant in variants(mine)
    ):
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
        rows.append([place, variant.label, *cells, *_figures(own)[1:]])
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
                place_of(entry),
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
    datasets = unique(entry["dataset"] for entry in entries)
    rows: list[list[str]] = []
    for place, there in _by_place(entries, temperature):
        whole: float | None = None
        for variant in variants(there):
            own = variant.of(there)
            cells = [mean_of([e for e in own if e["dataset"] == name], "tokens_per_s") for name in datasets]
            mean = mean_of(own, "tokens_per_s")
            whole = mean if whole is None else whole
            beside = f"{100 * (mean / whole - 1):+.1f} %" if mean and whole else ""
            rows.append([place, variant.label, *map(number, cells), number(mean), beside])
    return table(["Model", "Method", *datasets, "mean", "beside the first"], rows, left=2)


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


def detail_table(entries: Sequence[Entry]) -> str:
    """Return acceptance, latency and energy of each method, as means over datasets and points."""
    header = [
        "Model", "Method", "T", "tokens/s", "vs naive_pp", "vs autoregressive", "looping",
        "tokens/s (not looping)", "vs naive_pp (not looping)", "vs autoregressive (not looping)",
        "tokens a round", "a segment", "flushes", "TTFT ms", "ITL p50 ms", "ITL p99 ms", "rows for nothing",
        "J/token", "drawn on",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for profile, temperature, variant, own in _groups(entries):
        computed = sum(e["rows_computed"] for e in own)
        nothing = sum(e["rows_for_nothing"] for e in own) / computed if computed else 0.0
        varied = [e for e in own if e["looping_requests"] < e["requests"]]
        rows.append(
            [
                profile,
                variant.label,
                f"{temperature:g}",
                number(mean_of(own, "tokens_per_s")),
                times(mean_of(own, "speedup_vs_naive_pp")),
                times(mean_of(own, "speedup_vs_autoregressive")),
                f"{sum(e['looping_requests'] for e in own)} of {sum(e['requests'] for e in own)}",
                number(mean_of(varied, "tokens_per_s_without_looping")),
                times(mean_of(varied, "speedup_vs_naive_pp_without_looping")),
                times(mean_of(varied, "speedup_vs_autoregressive_without_looping")),
                number(mean_of(own, "acceptance_length")),
                number(mean_of(own, "acceptance_per_segment")),
                str(sum(e["flushes"] for e in own)),
                number(mean_of(own, "ttft_ms"), 0),
                number(mean_of(own, "itl_p50_ms"), 0),
                number(mean_of(own, "itl_p99_ms"), 0),
                f"{100 * nothing:.0f} %",
                number(mean_of(own, "energy_j_per_token"), 1),
                drawn_on(own),
            ]
        )
    return table(header, rows, left=2)


def bounds_table(entries: Sequence[Entry]) -> str:
    """Return the bounds of each method and the shares that it reached, as means over datasets and points."""
    header = [
        "Model", "Method", "T", "tokens/s", "crossing ms", "rows in flight", "bound", "share",
        "rows alive", "bound (alive)", "share (alive)",
    ]  # fmt: skip
    rows = [
        [
            profile,
            variant.label,
            f"{temperature:g}",
            number(mean_of(own, "tokens_per_s")),
            number(mean_of(own, "crossing_ms"), 0),
            number(mean_of(own, "rows_in_flight"), 1),
            number(mean_of(own, "bound_sent_tokens_per_s")),
            _percent(mean_of(own, "share_of_bound_sent")),
            number(mean_of(own, "rows_alive_in_flight"), 1),
            number(mean_of(own, "bound_tokens_per_s")),
            _percent(mean_of(own, "share_of_bound")),
        ]
        for profile, temperature, variant, own in _groups(entries)
    ]
    return table(header, rows, left=2)


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


def _groups(entries: Sequence[Entry]) -> Iterator[tuple[str, float, Variant, list[Entry]]]:
    """Yield the entries of each model, temperature and variant."""
    keys = unique((e["profile"], e["temperature"], variant_of(e)) for e in entries)
    for profile, temperature, variant in keys:
        own = [e for e in variant.of(entries) if (e["profile"], e["temperature"]) == (profile, temperature)]
        yield profile, temperature, variant, own


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
