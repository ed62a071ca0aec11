"""The tables of a report that explain a method's speed: acceptance, latency, devices and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from flowedge_testbed.report.entries import Entry, Variant, mean_of, unique, variant_of
from flowedge_testbed.report.markdown import number, table, times


def detail_table(entries: Sequence[Entry]) -> str:
    """Return acceptance, latency and energy of each method, as means over datasets and points."""
    header = [
        "Model", "Method", "T", "tokens/s", "vs naive_pp", "vs autoregressive", "looping",
        "tokens/s (not looping)", "vs naive_pp (not looping)", "vs autoregressive (not looping)",
        "tokens a round", "a segment", "flushes", "TTFT ms", "ITL p50 ms", "ITL p99 ms", "rows for nothing",
        "J/token",
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
