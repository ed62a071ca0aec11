"""A Gantt chart of one request: what each device did during a span of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.plots.style import Heading, ink_on, new_figure, text_width
from flowedge_testbed.trace import Interval, Trace, place_at


@dataclass(frozen=True)
class IntervalLook:
    """The colour and the hatch of a kind of interval, and its name in the legend."""

    colour: str
    name: str
    hatch: str = ""


# The colours differ in brightness, so that a print in grey tells them apart.
LOOKS = {
    "draft": IntervalLook("#F0B429", "draft"),
    "verify": IntervalLook("#7B2D5E", "verify (LM head)"),
    "prefill": IntervalLook("#C8C8C8", "prefill"),
    "forward": IntervalLook("#0B5C94", "forward"),
    "aborted": IntervalLook("#B9DAF0", "forward, aborted", "\\\\\\\\"),
    "transfer": IntervalLook("#2FA37C", "transfer out"),
}
_NUMBERED = ("forward", "prefill", "aborted")
_PRUNE = "#D55E00"
_FORWARDS = 28  # forwards of a stage that a chart shows, about
_LONGEST_BEFORE = 0.15  # of the span: a computation that was going on at its start is shown whole up to this
_WIDTH = 13.0  # inches
_NUMBER_SIZE = 6.5  # points
_POINTS = 72  # an inch


def window(record: RunRecord, trace: Trace) -> tuple[float, float]:
    """Return the first span of decoding, long enough to show the method and short enough to be legible.

    The span begins early enough to show the computation whole that gave the first token.
    """
    forwards = [i.end - i.start for i in trace.intervals if i.kind == "forward"]
    usual = sorted(forwards)[len(forwards) // 2] if forwards else 0.1
    length = min(max(_FORWARDS * usual, 1e-3), max(record.latency_s - record.ttft_s, 1e-3))
    start = record.ttft_s - 0.02 * length
    before = [i.start for i in trace.intervals if i.kind in _NUMBERED and i.start < start < i.end]
    early = min(before, default=start)
    if start - early <= _LONGEST_BEFORE * length:
        start = early - 0.005 * length
    return max(start, 0.0), record.ttft_s + length


def draw_gantt(record: RunRecord, trace: Trace, heading: Heading) -> Figure:
    """Draw a line for each device with computing above sending, prune arrivals, and tokens at the top.

    The axis has the seconds since the request arrived.
    """
    start, end = window(record, trace)
    names = [device.device.upper() for device in record.devices]
    lines = {place_at(device.device): line for line, device in enumerate(record.devices)}
    figure, axes = new_figure(_WIDTH, 1.5 + 0.62 * len(lines), heading)
    panel = axes[0, 0]
    shown = [
        interval
        for interval in trace.intervals
        if interval.place in lines
        and interval.kind in LOOKS
        and interval.end > start
        and interval.start < end
    ]
    for interval in shown:
        _draw(panel, lines[interval.place], interval, start, end)
    marks = [mark for mark in trace.prunes if mark.stage in lines and start <= mark.time < end]
    panel.plot(
        [mark.time for mark in marks], [lines[mark.stage] - 0.36 for mark in marks],
        linestyle="", marker="v", markersize=4, color=_PRUNE,
    )  # fmt: skip
    _tokens(panel, record, start, end)
    of_devices(panel, names, -1.05, (start, end))
    panel.set_xlabel("seconds since the request arrived; numbers are rows computed; white is idle")
    _legend(figure, {interval.kind for interval in shown})
    figure.draw_without_rendering()  # the layout is known after this
    _numbers(panel, lines, shown, start, end)
    return figure


def of_devices(panel: Any, names: Sequence[str], top: float, span: tuple[float, float]) -> None:
    """Give a panel a line for each device, the first at 0, and a span of seconds.

    top: the upper end of the axis, in lines.
    """
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.45, top)
    panel.set_xlim(*span)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    for boundary in range(1, len(names)):
        panel.axhline(boundary - 0.47, color="#dddddd", linewidth=0.6)


def _draw(panel: Any, line: int, interval: Interval, start: float, end: float) -> None:
    first, last = max(interval.start, start), min(interval.end, end)
    offset, height = (0.2, 0.16) if interval.kind == "transfer" else (-0.3, 0.44)
    look = LOOKS[interval.kind]
    panel.broken_barh(
        [(first, last - first)], (line + offset, height), facecolor=look.colour, edgecolor="white",
        hatch=look.hatch, linewidth=0.4 if last - first > (end - start) / 250 else 0.0,
    )  # fmt: skip


def _numbers(
    panel: Any, lines: dict[int, int], intervals: Sequence[Interval], start: float, end: float
) -> None:
    """Write the number of rows on each computation that is drawn wide enough for it."""
    inches = panel.get_window_extent().width / panel.figure.dpi
    for interval in intervals:
        first, last = max(interval.start, start), min(interval.end, end)
        room = (last - first) / (end - start) * inches - 2 / _POINTS
        if interval.kind in _NUMBERED and text_width(str(interval.rows), _NUMBER_SIZE) < room:
            look = LOOKS[interval.kind]
            panel.text(
                (first + last) / 2, lines[interval.place] - 0.08, str(interval.rows), fontsize=_NUMBER_SIZE,
                color=ink_on(look.colour), ha="center", va="center", clip_on=True,
                bbox={"facecolor": look.colour, "edgecolor": "none", "pad": 0.5} if look.hatch else None,
            )  # fmt: skip


def _token_times(record: RunRecord) -> Iterator[float]:
    time = record.ttft_s
    yield time
    for gap in record.itl_s:
        time += gap
        yield time


def _tokens(panel: Any, record: RunRecord, start: float, end: float) -> None:
    """Draw a tick for each moment at which tokens came out, with their number."""
    groups: dict[float, int] = {}
    for time in _token_times(record):
        groups[round(time, 9)] = groups.get(round(time, 9), 0) + 1
    for time, count in groups.items():
        if start <= time < end:
            panel.plot([time] * 2, [-0.62, -0.5], color="black", linewidth=1)
            panel.text(time, -0.68, str(count), fontsize=7, ha="center", va="bottom")
    panel.text(start - 0.004 * (end - start), -0.68, "tokens", fontsize=7, ha="right", va="bottom")


def _legend(figure: Figure, kinds: set[str]) -> None:
    handles: list[Any] = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", label=look.name)
        for kind, look in LOOKS.items()
        if kind in kinds
    ]
    handles.append(Line2D([], [], linestyle="", marker="v", color=_PRUNE, label="prune arrives (express)"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
