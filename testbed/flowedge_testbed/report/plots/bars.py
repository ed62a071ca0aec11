"""Bars of tokens/s by model, temperature and dataset; bars of auto beside the best other method by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from flowedge_testbed.report.entries import Entry, unique
from flowedge_testbed.report.leads import HELD, Lead
from flowedge_testbed.report.plots.style import (
    MARGIN,
    NOTE_SIZE,
    Heading,
    colour,
    empty_figure,
    text_width,
    three_digits,
    wrapped,
)
from flowedge_testbed.report.same_results import Panel, panels

LABEL_SIZE = 8.0  # points
_ROW_TITLE_SIZE = 9.0
_BAR = 0.19  # inches, as all lengths here; the place of one bar
_LINE = 0.17  # height of a line of a row's title
_PANEL = 1.75  # width
_GAP = 0.15  # between panels
_BEFORE_ROW = 0.16
_NAMES = 0.2  # height of the datasets' names
_LONGEST_LABEL = 3.2
_ROOM = 1.42  # of the longest bar, for its value


def draw_bars(entries: Sequence[Entry], heading: Heading) -> Figure:
    """Draw the rows of panels: each bar with its value, the longest of a panel in bold."""
    rows, datasets = panels(entries), unique(entry["dataset"] for entry in entries)
    columns = [None, *datasets] if len(datasets) > 1 else datasets
    labels = {
        method.label: "\n".join(wrapped(method.label, LABEL_SIZE, _LONGEST_LABEL))
        for row in rows
        for method in row.methods
    }
    left = 2 * MARGIN + max(
        text_width(line, LABEL_SIZE) for label in labels.values() for line in label.split("\n")
    )
    width = max(left + len(columns) * (_PANEL + _GAP) + MARGIN, 6.0)
    titles = [wrapped(row.title, _ROW_TITLE_SIZE, width - 2 * MARGIN, bold=True) for row in rows]
    heights = [
        _BEFORE_ROW + len(title) * _LINE + _NAMES + _BAR * len(row.methods)
        for row, title in zip(rows, titles, strict=True)
    ]
    figure, whole = empty_figure(width, sum(heights) + MARGIN, heading)
    top = sum(heights) + MARGIN
    for row, title, height in zip(rows, titles, heights, strict=True):
        figure.text(
            MARGIN / width, (top - _BEFORE_ROW) / whole, "\n".join(title), fontsize=_ROW_TITLE_SIZE,
            fontweight="bold", va="top", ha="left", parse_math=False,
        )  # fmt: skip
        most = max((row.speed(method, name) or 0 for method in row.methods for name in columns), default=0)
        for place, dataset in enumerate(columns):
            bars = _BAR * len(row.methods)
            frame = (left + place * (_PANEL + _GAP), top - height, _PANEL, bars)
            panel = figure.add_axes((frame[0] / width, frame[1] / whole, frame[2] / width, frame[3] / whole))
            panel.set_xlim(0, _ROOM * most or 1)
            name = f"mean of {len(datasets)} datasets" if dataset is None else dataset
            panel.set_title(
                f"{name}, tokens/s" if place == 0 else name, fontsize=LABEL_SIZE, loc="left", pad=3
            )
            _draw_panel(panel, row, dataset, [labels[m.label] for m in row.methods] if place == 0 else [])
        top -= height
    return figure


def _draw_panel(panel: Any, row: Panel, dataset: str | None, labels: Sequence[str]) -> None:
    speeds = [row.speed(method, dataset) for method in row.methods]
    best = max((speed for speed in speeds if speed is not None), default=None)
    for place, (method, speed) in enumerate(zip(row.methods, speeds, strict=True)):
        variant = method.first
        panel.barh(
            place, speed or 0, 0.78, color=colour(variant.method), hatch="" if variant.plain else "/////",
            edgecolor="white" if not variant.plain else "black", linewidth=0.4,
        )  # fmt: skip
        panel.annotate(
            "not measured" if speed is None else three_digits(speed),
            (speed or 0, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5,
            fontweight="bold" if speed == best and len(speeds) > 1 else "normal",
        )  # fmt: skip
    panel.set_ylim(len(speeds) - 0.5, -0.5)
    panel.set_yticks(range(len(speeds)) if labels else [], labels, fontsize=LABEL_SIZE)
    panel.tick_params(axis="y", length=0)
    panel.set_xticks([])
    panel.spines[["top", "right", "bottom"]].set_visible(False)


_LEADS, _LEADS_GAP, _ABOVE = 2.6, 0.2, 0.3
_VALUES = 1.15  # width that the values beside the longest bar take
_BEHIND = "#D55E00"


def draw_leads(found: Sequence[Lead], heading: Heading) -> Figure:
    """Draw auto's tokens/s over the best other's as bars with the other's name, and plain decoding's as dots.

    Bars of places where auto is behind have another colour.
    """
    places = unique(lead.place for lead in found)
    kinds = unique((lead.temperature, lead.noise) for lead in found)
    left = 2 * MARGIN + max(text_width(place, NOTE_SIZE) for place in places)
    width, bars = left + len(kinds) * (_LEADS + _LEADS_GAP) + MARGIN, _BAR * len(places)
    figure, whole = empty_figure(width, bars + _ABOVE + MARGIN, heading)
    most = max(1.0, *(lead.ratio for lead in found))
    for column, (temperature, noise) in enumerate(kinds):
        start = left + column * (_LEADS + _LEADS_GAP)
        panel = figure.add_axes((start / width, MARGIN / whole, _LEADS / width, bars / whole))
        panel.set_xlim(0, most * _LEADS / (_LEADS - _VALUES))
        panel.set_ylim(len(places) - 0.5, -0.5)
        drafting = "" if temperature == 0 else f", {noise} noise"
        panel.set_title(f"temperature {temperature:g}{drafting}", fontsize=NOTE_SIZE, loc="left", pad=3)
        for lead in found:
            if (lead.temperature, lead.noise) == (temperature, noise):
                _draw(panel, places.index(lead.place), lead)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_yticks(range(len(places)) if column == 0 else [], places if column == 0 else [])
        panel.tick_params(axis="y", length=0, labelsize=NOTE_SIZE)
        panel.set_xticks([])
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    return figure


def _draw(panel: Any, row: int, lead: Lead) -> None:
    panel.barh(row, lead.ratio, 0.78, color=_BEHIND if lead.ratio < HELD else colour("auto"))
    if lead.plain_speed is not None:
        panel.plot(lead.plain_speed / lead.rival_speed, row, "o", color="#bbbbbb", markersize=3.5)
    panel.annotate(
        f"{lead.ratio:.2f} {lead.rival}", (max(lead.ratio, 1), row), xytext=(5, 0),
        textcoords="offset points", va="center", fontsize=7,
    )  # fmt: skip
