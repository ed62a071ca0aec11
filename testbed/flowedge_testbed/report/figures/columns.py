"""The figures that tables and plots show by name: how each follows from the entries of a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeAlias

from flowedge_testbed.report.draw_places import drawn_on
from flowedge_testbed.report.entries import Entry, mean_of
from flowedge_testbed.report.figures.spread import speed_half_width, speedup_half_width
from flowedge_testbed.report.markdown import give_or_take, number, percent, times
from flowedge_testbed.scenario_parts import ColumnName

Figure: TypeAlias = Callable[[Sequence[Entry]], float | None]
HalfWidth: TypeAlias = Callable[[Sequence[Entry], Sequence[Entry]], float | None]


@dataclass(frozen=True)
class FigureColumn:
    """A figure of a method, from its entries: a mean over datasets and points, or a sum.

    Attributes:
        title: of the column, and of an axis.
        value: None where it was not measured.
        show: returns the figure as a text.
        spread: returns the half width over prompts, from the method's entries and all of the report.
        words: returns what a table says in place of the figure.
    """

    title: str
    value: Figure
    show: Callable[[float | None], str] = number
    spread: HalfWidth | None = None
    words: Callable[[Sequence[Entry]], str] | None = None

    def cell(self, own: Sequence[Entry], among: Sequence[Entry]) -> str:
        """Return the figure with its half width over prompts, if it has one."""
        if self.words is not None:
            return self.words(own)
        value = self.value(own)
        width = None if self.spread is None or value is None else self.spread(own, among)
        return give_or_take(self.show(value), width)


def _mean(name: str, unit: float = 1.0) -> Figure:
    def value(entries: Sequence[Entry]) -> float | None:
        mean = mean_of(entries, name)
        return None if mean is None else mean / unit

    return value


def _varied(name: str) -> Figure:
    """Return the mean over entries that have an answer that does not loop."""

    def value(entries: Sequence[Entry]) -> float | None:
        return mean_of([e for e in entries if e["looping_requests"] < e["requests"]], name)

    return value


def _sum(name: str) -> Figure:
    return lambda entries: sum(entry[name] for entry in entries)


def _looping(entries: Sequence[Entry]) -> str:
    return f"{sum(e['looping_requests'] for e in entries)} of {sum(e['requests'] for e in entries)}"


def _share(part: str, whole: str) -> Figure:
    def value(entries: Sequence[Entry]) -> float | None:
        total = sum(entry[whole] for entry in entries)
        return sum(entry[part] for entry in entries) / total if total else 0.0

    return value


def _memory(of_devices: Callable[[Sequence[float]], float]) -> Figure:
    def value(entries: Sequence[Entry]) -> float | None:
        held = [entry["memory_gib"] for entry in entries]
        return fmean(of_devices(list(each.values())) for each in held) if held and all(held) else None

    return value


def _speed_per_gib(entries: Sequence[Entry]) -> float | None:
    speed, held = mean_of(entries, "tokens_per_s"), _memory(sum)(entries)
    return None if speed is None or held is None else speed / held


def _bytes_per_token(entries: Sequence[Entry]) -> float | None:
    tokens = sum(entry["tokens"] for entry in entries)
    return sum(sum(e["link_bytes"].values()) for e in entries) / tokens / 1e3 if tokens else None


def _per_seconds(entries: Sequence[Entry]) -> float | None:
    speed = mean_of(entries, "tokens_per_s")
    return 1e3 / speed if speed else None


_whole = partial(number, digits=0)
_tenths = partial(number, digits=1)

COLUMNS: dict[ColumnName, FigureColumn] = {
    "tokens_per_s": FigureColumn(
        "tokens/s", _mean("tokens_per_s"), spread=lambda own, _: speed_half_width(own)
    ),
    "speedup_vs_naive_pp": FigureColumn(
        "vs naive_pp",
        _mean("speedup_vs_naive_pp"),
        times,
        lambda own, among: speedup_half_width(own, among, "naive_pp"),
    ),
    "speedup_vs_autoregressive": FigureColumn(
        "vs autoregressive",
        _mean("speedup_vs_autoregressive"),
        times,
        lambda own, among: speedup_half_width(own, among, "autoregressive"),
    ),
    "looping": FigureColumn("looping", _share("looping_requests", "requests"), percent, words=_looping),
    "tokens_per_s_without_looping": FigureColumn(
        "tokens/s (not looping)", _varied("tokens_per_s_without_looping")
    ),
    "speedup_vs_naive_pp_without_looping": FigureColumn(
        "vs naive_pp (not looping)", _varied("speedup_vs_naive_pp_without_looping"), times
    ),
    "speedup_vs_autoregressive_without_looping": FigureColumn(
        "vs autoregressive (not looping)", _varied("speedup_vs_autoregressive_without_looping"), times
    ),
    "tokens_a_round": FigureColumn("tokens a round", _mean("acceptance_length")),
    "tokens_a_segment": FigureColumn("a segment", _mean("acceptance_per_segment")),
    "hit_rate": FigureColumn("hit rate", _mean("hit_rate"), percent),
    "flushes": FigureColumn("flushes", _sum("flushes"), _whole),
    "ttft_ms": FigureColumn("TTFT ms", _mean("ttft_ms"), _whole),
    "first_gap_ms": FigureColumn("first gap ms", _mean("first_gap_ms"), _whole),
    "predicted_ms": FigureColumn("ms by PipeDec 2.4", _mean("predicted_ms"), _whole),
    "predicted_with_misses_ms": FigureColumn(
        "ms by SpecPipe eq. 1", _mean("predicted_with_misses_ms"), _whole
    ),
    "per_token_ms": FigureColumn("ms a token", _per_seconds, _whole),
    "itl_p50_ms": FigureColumn("ITL p50 ms", _mean("itl_p50_ms"), _whole),
    "itl_p99_ms": FigureColumn("ITL p99 ms", _mean("itl_p99_ms"), _whole),
    "latency_s": FigureColumn("latency s", _mean("latency_ms", 1e3)),
    "rows_for_nothing": FigureColumn(
        "rows for nothing", _share("rows_for_nothing", "rows_computed"), percent
    ),
    "energy_j_per_token": FigureColumn("J/token", _mean("energy_j_per_token"), _tenths),
    "measured_j_per_token": FigureColumn("J/token, measured", _mean("measured_j_per_token"), _tenths),
    "drawn_on": FigureColumn("drawn on", lambda _: None, words=drawn_on),
    "memory_gib": FigureColumn("GiB", _memory(sum), _tenths),
    "fullest_gib": FigureColumn("GiB, fullest device", _memory(max), _tenths),
    "tokens_per_s_per_gib": FigureColumn("tokens/s per GiB", _speed_per_gib, partial(number, digits=3)),
    "link_kb_per_token": FigureColumn("kB a token", _bytes_per_token, _tenths),
    "crossing_ms": FigureColumn("crossing ms", _mean("crossing_ms"), _whole),
    "rows_in_flight": FigureColumn("rows in flight", _mean("rows_in_flight"), _tenths),
    "rows_alive_in_flight": FigureColumn("rows alive", _mean("rows_alive_in_flight"), _tenths),
    "bound_sent_tokens_per_s": FigureColumn("bound", _mean("bound_sent_tokens_per_s")),
    "share_of_bound_sent": FigureColumn("share", _mean("share_of_bound_sent"), percent),
    "bound_tokens_per_s": FigureColumn("bound (alive)", _mean("bound_tokens_per_s")),
    "share_of_bound": FigureColumn("share (alive)", _mean("share_of_bound"), percent),
}

ACCEPTANCE: tuple[ColumnName, ...] = (
    "tokens_per_s", "speedup_vs_naive_pp", "speedup_vs_autoregressive", "looping",
    "tokens_per_s_without_looping", "speedup_vs_naive_pp_without_looping",
    "speedup_vs_autoregressive_without_looping", "tokens_a_round", "tokens_a_segment", "hit_rate", "flushes",
    "ttft_ms", "first_gap_ms", "itl_p50_ms", "itl_p99_ms", "rows_for_nothing", "energy_j_per_token",
    "drawn_on",
)  # fmt: skip
BOUNDS: tuple[ColumnName, ...] = (
    "tokens_per_s", "crossing_ms", "rows_in_flight", "bound_sent_tokens_per_s", "share_of_bound_sent",
    "rows_alive_in_flight", "bound_tokens_per_s", "share_of_bound",
)  # fmt: skip
