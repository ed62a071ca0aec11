"""A Gantt chart of one request: what each device did during a span of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.style import new_figure, save
from flowedge_testbed.trace import Trace, place_at

_KINDS = {
    "draft": ("#E69F00", "draft"),
    "verify": ("#CC79A7", "verify (LM head)"),
    "prefill": ("#999999", "prefill"),
    "forward": ("#0072B2", "forward"),
    "aborted": ("#9CC9E8", "forward, aborted"),
    "transfer": ("#009E73", "transfer out"),
}
_PRUNE = "#D55E00"
_FORWARDS = 28  # forwards of a stage that a chart shows, about
_BEFORE = 0.02  # share of the window shown before the first token


def window(record: RunRecord, trace: Trace) -> tuple[float, float]:
    """Return the first span of decoding, long enough to show the method and short enough to be legible."""
    forwards = [i.end - i.start for i in trace.intervals if i.kind == "forward"]
    usual = sorted(forwards)[len(forwards) // 2] if forwards else 0.1
    length = min(max(_FORWARDS * usual, 1e-3), max(record.latency_s - record.ttft_s, 1e-3))
    start = record.ttft_s - _BEFORE * length
    return start, start + length * (1 + _BEFORE)


def plot_gantt(record: RunRecord, trace: Trace, title: str, path: Path) -> Path:
    """Draw a line for each device with computing above sending, prune arrivals, and tokens at the top."""
    start, end = window(record, trace)
    names = [device.device.upper() for device in record.devices]
    lines = {place_at(device.device): line for line, device in enumerate(record.devices)}
    places = list(lines)
    figure, axes = new_figure(13, 1.5 + 0.62 * len(places))
    panel = axes[0, 0]
    for interval in trace.intervals:
        line = lines.get(interval.place)
        if line is not None and interval.kind in _KINDS and interval.end > start and interval.start < end:
            shown = (max(interval.start, start) - start, min(interval.end, end) - start)
            edge = 0.4 if shown[1] - shown[0] > (end - start) / 250 else 0.0
            _draw(panel, line, interval.kind, *shown, edge)
            if (
                interval.kind in ("forward", "prefill", "aborted")
                and interval.end - interval.start > (end - start) / 60
            ):
                panel.text(
                    sum(shown) / 2, line - 0.1, str(interval.rows), color="white", fontsize=6.5,
                    ha="center", va="center", clip_on=True,
                )  # fmt: skip
    marks = [mark for mark in trace.prunes if mark.stage in lines and start <= mark.time < end]
    panel.plot(
        [mark.time - start for mark in marks], [lines[mark.stage] - 0.36 for mark in marks],
        linestyle="", marker="v", markersize=4, color=_PRUNE,
    )  # fmt: skip
    _tokens(panel, record, start, end)
    panel.set_yticks(range(len(places)), names)
    panel.set_ylim(len(places) - 0.45, -1.05)
    panel.set_xlim(0, end - start)
    panel.set_xlabel(
        f"seconds since {start:.2f} s after the request; numbers are rows computed; white is idle"
    )
    panel.set_title(title, fontsize=10)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    for boundary in range(1, len(places)):
        panel.axhline(boundary - 0.47, color="#dddddd", linewidth=0.6)
    _legend(figure, sorted({i.kind for i in trace.intervals if i.end > start and i.start < end}))
    return save(figure, path)


def _draw(panel: Any, row: int, kind: str, start: float, end: float, edge: float) -> None:
    offset, height = (0.2, 0.16) if kind == "transfer" else (-0.3, 0.44)
    panel.broken_barh(
        [(start, end - start)], (row + offset, height),
        facecolor=_KINDS[kind][0], edgecolor="white", linewidth=edge,
    )  # fmt: skip


def _tokens(panel: Any, record: RunRecord, start: float, end: float) -> None:
    """Draw a tick for each moment at which tokens came out, with their number."""
    times = [record.ttft_s]
    for gap in record.itl_s:
        times.append(times[-1] + gap)
    groups: dict[float, int] = {}
    for time in times:
        key = round(time, 9)
        groups[key] = groups.get(key, 0) + 1
    for time, count in groups.items():
        if start <= time < end:
            panel.plot([time - start] * 2, [-0.62, -0.5], color="black", linewidth=1)
            panel.text(time - start, -0.68, str(count), fontsize=7, ha="center", va="bottom")
    panel.text(-0.004 * (end - start), -0.68, "tokens", fontsize=7, ha="right", va="bottom")


def _legend(figure: Any, kinds: Sequence[str]) -> None:
    handles: list[Any] = [
        Patch(color=_KINDS[kind][0], label=_KINDS[kind][1]) for kind in _KINDS if kind in kinds
    ]
    handles.append(Line2D([], [], linestyle="", marker="v", color=_PRUNE, label="prune arrives (express)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
