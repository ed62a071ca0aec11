"""Plots of figures along the axes of a sweep: lines along one axis, maps of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flowedge_testbed.report.entries import Entry, safe_name, unique
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.figures.sweep_tables import SPEED, at, axis_title
from flowedge_testbed.report.paper import counterpart, published_sweep
from flowedge_testbed.report.plots.style import (
    MARGIN,
    NOTE_SIZE,
    Heading,
    colour,
    empty_figure,
    line_style,
    new_figure,
    spread,
    text_width,
    three_digits,
    tidy,
    wrapped,
)
from flowedge_testbed.report.same_results import EqualModels, EqualVariants, by_temperature, equal_variants
from flowedge_testbed.scenario_parts import ColumnName

_PANEL = 4.2  # inches, as all lengths here; the width of a panel without the labels of its lines
_LEAST_HEIGHT = 2.8
_LEFT, _BOTTOM, _BEFORE_LABEL = 0.65, 0.55, 0.25
_TITLE_SIZE = 9.0  # points
_LINE = 0.16  # height of a line of text
_LONGEST_LABEL = 2.6
_WIDE = 16  # from the least value of an axis to the most, from which on it is logarithmic


@dataclass(frozen=True)
class LineEnd:
    """The label at the end of a line, whose last value is `value`."""

    value: float
    lines: tuple[str, ...]
    ink: str

    @classmethod
    def named(cls, name: str, value: float, ink: str) -> LineEnd:
        return cls(value, tuple(wrapped(f"{name} {three_digits(value)}", NOTE_SIZE, _LONGEST_LABEL)), ink)


@dataclass(frozen=True)
class SweepPanel:
    """The lines of equal models along an axis, at one temperature.

    Attributes:
        title: names the models, and the temperature if there are several.
        values: of the axis.
        figures: at each value of the axis, by method; published: figures of others, by their label.
    """

    title: str
    values: Sequence[float]
    figures: Sequence[tuple[EqualVariants, Sequence[float | None]]]
    published: Mapping[str, Sequence[float]]

    @property
    def ends(self) -> list[LineEnd]:
        found = [
            LineEnd.named(method.label, figures[-1], colour(method.first.method))
            for method, figures in self.figures
            if figures[-1] is not None
        ]
        return found + [LineEnd.named(name, theirs[-1], "#666666") for name, theirs in self.published.items()]


def sweep_panels(entries: Sequence[Entry], axis: str, name: ColumnName) -> list[SweepPanel]:
    """Return a panel for each model and temperature, with equal models and equal methods only once."""
    values = unique(entry["point"][axis] for entry in entries)
    temperatures = unique(entry["temperature"] for entry in entries)
    published = published_sweep(entries, axis) if name == SPEED else {}
    panels = []
    for models, temperature, mine in by_temperature(entries):
        methods = equal_variants(mine)
        theirs = {
            f"{method.first.method}, published": published[counterpart(method.first)]
            for method in methods
            if counterpart(method.first) in published
        }
        figures = [
            (
                method,
                [
                    COLUMNS[name].value([e for e in method.first.of(mine) if e["point"][axis] == value])
                    for value in values
                ],
            )
            for method in methods
        ]
        title = models.label + (f", temperature {temperature:g}" if len(temperatures) > 1 else "")
        panels.append(SweepPanel(title, values, figures, theirs))
    return panels


def draw_lines(entries: Sequence[Entry], axis: str, name: ColumnName, heading: Heading) -> Figure:
    """Draw a panel for each model: means over datasets by method, and published figures dotted in grey.

    Each line ends in the method's name and its figure at the last value of the axis.
    """
    panels = sweep_panels(entries, axis, name)
    ends = [panel.ends for panel in panels]
    beside = _BEFORE_LABEL + max(
        (text_width(line, NOTE_SIZE) for labels in ends for end in labels for line in end.lines), default=0.0
    )
    titles = [wrapped(panel.title, _TITLE_SIZE, _PANEL, bold=True) for panel in panels]
    high = max(_LEAST_HEIGHT, *(_LINE * sum(len(end.lines) for end in labels) for labels in ends))
    above = _LINE * max(map(len, titles)) + 2 * MARGIN
    each = _LEFT + _PANEL + beside + MARGIN
    figure, whole = empty_figure(each * len(panels), _BOTTOM + high + above, heading)
    width = each * len(panels)
    for place, (panel, labels, title) in enumerate(zip(panels, ends, titles, strict=True)):
        left = place * each + _LEFT
        frame = figure.add_axes((left / width, _BOTTOM / whole, _PANEL / width, high / whole))
        frame.set_title("\n".join(title), fontsize=_TITLE_SIZE, fontweight="bold", loc="left")
        _draw_panel(frame, panel, axis_title(axis), COLUMNS[name].title)
        _label_ends(frame, panel.values[-1], labels, high)
    return figure


def _draw_panel(frame: Any, panel: SweepPanel, below: str, beside: str) -> None:
    for method, figures in panel.figures:
        ink = colour(method.first.method)
        frame.plot(
            panel.values, [np.nan if value is None else value for value in figures], color=ink,
            markersize=4.5, markerfacecolor=ink if method.first.plain else "white",
            **line_style(method.first.method),
        )  # fmt: skip
    for theirs in panel.published.values():
        frame.plot(panel.values, theirs, color="#888888", linewidth=1, linestyle=":")
    frame.set_xlabel(below)
    frame.set_ylabel(beside)
    if min(panel.values) > 0 and max(panel.values) >= _WIDE * min(panel.values):
        frame.set_xscale("log", base=2)
        frame.minorticks_off()
    frame.set_xticks(panel.values, [f"{value:g}" for value in panel.values], fontsize=NOTE_SIZE)
    frame.set_ylim(bottom=0)
    tidy(frame)


def _label_ends(frame: Any, last: float, ends: Sequence[LineEnd], height: float) -> None:
    """Write the labels beside the ends of the lines, far enough apart to be read."""
    top = frame.get_ylim()[1]
    places = spread(
        [end.value / top * height for end in ends], [_LINE * len(end.lines) for end in ends], height
    )
    for end, place in zip(ends, places, strict=True):
        frame.annotate(
            "\n".join(end.lines), (last, end.value), xytext=(1 + _BEFORE_LABEL / _PANEL, place / height),
            textcoords="axes fraction", fontsize=NOTE_SIZE, va="center", annotation_clip=False,
            parse_math=False, linespacing=1.1,
            arrowprops={
                "arrowstyle": "-", "color": end.ink, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


@dataclass(frozen=True)
class SweepMap:
    """The points of one method along two axes, on equal models and at one temperature."""

    models: EqualModels
    temperature: float
    method: EqualVariants
    entries: Sequence[Entry]
    several: bool  # whether there are maps of other models or temperatures

    @property
    def title(self) -> str:
        at = f", {self.models.label}, temperature {self.temperature:g}" if self.several else ""
        return f"{self.method.label}{at}"

    @property
    def file_name(self) -> str:
        at = f"{self.models.profiles[0]}-{self.temperature:g}-" if self.several else ""
        return safe_name(f"{at}{self.method.first.file_name}")


def sweep_maps(entries: Sequence[Entry]) -> list[SweepMap]:
    """Return a map for each model, temperature and method, with equal results only once."""
    found = [
        (models, temperature, method, mine)
        for models, temperature, mine in by_temperature(entries)
        for method in equal_variants(mine)
    ]
    several = len({(models.label, temperature) for models, temperature, _, _ in found}) > 1
    return [
        SweepMap(models, temperature, method, method.first.of(mine), several)
        for models, temperature, method, mine in found
    ]


def draw_map(shown: SweepMap, axes: tuple[str, str], name: ColumnName, heading: Heading) -> Figure:
    """Draw a map of a figure: the values of the first axis downwards, those of the second to the right."""
    column = COLUMNS[name]
    down, right = (unique(entry["point"][axis] for entry in shown.entries) for axis in axes)
    values = [[column.value(at(shown.entries, axes, (x, y))) for y in right] for x in down]
    grid = np.array([[np.nan if value is None else value for value in row] for row in values])
    figure, panels = new_figure(max(5.6, 1.6 + 0.8 * len(right)), max(3.0, 1.4 + 0.45 * len(down)), heading)
    panel = panels[0, 0]
    image = panel.imshow(grid, cmap="viridis", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, place), value in np.ndenumerate(grid):
        ink = "black" if value > middle else "white"
        text = column.show(values[row][place])
        panel.text(place, row, text, ha="center", va="center", fontsize=8, color=ink)
    panel.set_xticks(range(len(right)), [f"{value:g}" for value in right])
    panel.set_yticks(range(len(down)), [f"{value:g}" for value in down])
    panel.set_xlabel(axis_title(axes[1]))
    panel.set_ylabel(axis_title(axes[0]))
    figure.colorbar(image, ax=panel, label=column.title)
    return figure
