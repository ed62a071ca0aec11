"""A Gantt chart of a load: what each device did for which session, with a colour for each session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flowedge.engine.activity import ABORTED, COMPUTING, PREFILL, TRANSFER
from flowedge_testbed.load.load_record import LoadRecord, charted_span
from flowedge_testbed.report.plots.gantt import of_devices
from flowedge_testbed.report.plots.style import NOTE_SIZE, Heading, ink_on, new_figure, text_width
from flowedge_testbed.trace import NO_SESSION, Interval, Trace, place_at

# Bright and dark take turns, so that neighbours differ in grey too.
SESSION_COLOURS = (
    "#0B5C94", "#F0B429", "#7B2D5E", "#56C1A0", "#D55E00", "#B9DAF0", "#1B5E3B", "#F4A6C6",
    "#4B3F8F", "#C6C12B", "#8C3B1F", "#8FB8DE", "#333333", "#E7C8A0", "#A3195B", "#BFBFBF",
)  # fmt: skip
_WIDTH = 13.0  # inches
_NUMBER_SIZE = 6.5  # points
_POINTS = 72  # an inch
_TOP, _HEIGHT = -0.36, 0.56  # of the computing on a device's line
_COLUMNS = 9  # of the legend
_HATCHES = {PREFILL: "....", ABORTED: "\\\\\\\\"}


def draw_load_gantt(record: LoadRecord, trace: Trace, heading: Heading) -> Figure:
    """Draw a line for each device with computing above sending, each session in its colour.

    Sessions that a stage computed in one forward lie above each other, each as high as its share of the rows.
    Numbers on the bars are those of the requests.
    """
    start, end = charted_span(record, trace)
    names = list(record.use.busy)
    lines = {place_at(name): line for line, name in enumerate(names)}
    shown = [
        each
        for each in trace.intervals
        if each.place in lines
        and each.kind in (*COMPUTING, TRANSFER)
        and each.end > start
        and each.start < end
    ]
    sessions = sorted({each.session for each in shown if each.session != NO_SESSION})
    colours = {number: SESSION_COLOURS[place % len(SESSION_COLOURS)] for place, number in enumerate(sessions)}
    figure, axes = new_figure(_WIDTH, 1.3 + 0.62 * len(lines) + 0.2 * (len(sessions) // _COLUMNS), heading)
    panel = axes[0, 0]
    of_devices(panel, [name.upper() for name in names], -0.55, (start, end))
    panel.set_xlabel("seconds since the load began; numbers are of requests; white is idle")
    _legend(figure, colours, {each.kind for each in shown})
    figure.draw_without_rendering()  # the layout is known after this
    inches = panel.get_window_extent().width / figure.dpi
    for group in _together(shown):
        _draw(panel, lines[group[0].place], group, colours, (start, end), inches)
    return figure


def _together(intervals: Sequence[Interval]) -> list[list[Interval]]:
    """Return the intervals, with those that are one computation of several sessions in one list."""
    groups: dict[tuple[int, float, float, bool], list[Interval]] = {}
    for each in intervals:
        groups.setdefault((each.place, each.start, each.end, each.kind == TRANSFER), []).append(each)
    return list(groups.values())


def _draw(
    panel: Any,
    line: int,
    group: Sequence[Interval],
    colours: Mapping[int, str],
    span: tuple[float, float],
    inches: float,
) -> None:
    start, end = span
    first, last = max(group[0].start, start), min(group[0].end, end)
    sending = group[0].kind == TRANSFER
    top, height = (line + 0.24, 0.14) if sending else (line + _TOP, _HEIGHT)
    rows = sum(max(each.rows, 1) for each in group)
    room = (last - first) / (end - start) * inches - 2 / _POINTS
    for each in sorted(group, key=lambda one: one.session):
        part = height * max(each.rows, 1) / rows
        ink = colours.get(each.session, "#DDDDDD")
        panel.broken_barh(
            [(first, last - first)], (top, part), facecolor=ink, edgecolor="white",
            hatch=_HATCHES.get(each.kind, ""), linewidth=0.4 if last - first > (end - start) / 250 else 0.0,
        )  # fmt: skip
        label = str(each.session)
        fits = text_width(label, _NUMBER_SIZE) < room and part >= height / 4
        if not sending and each.session != NO_SESSION and fits:
            panel.text(
                (first + last) / 2, top + part / 2, label, fontsize=_NUMBER_SIZE, color=ink_on(ink),
                ha="center", va="center", clip_on=True,
                bbox={"facecolor": ink, "edgecolor": "none", "pad": 0.5} if each.kind in _HATCHES else None,
            )  # fmt: skip
        top += part


def _legend(figure: Figure, colours: Mapping[int, str], kinds: set[str]) -> None:
    handles = [Patch(facecolor=ink, label=f"request {number}") for number, ink in colours.items()]
    names = {PREFILL: "prefill", ABORTED: "forward, aborted"}
    handles += [
        Patch(facecolor="#BBBBBB", edgecolor="white", hatch=hatch, label=names[kind])
        for kind, hatch in _HATCHES.items()
        if kind in kinds
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(_COLUMNS, len(handles)), frameon=False,
        fontsize=NOTE_SIZE,
    )  # fmt: skip
