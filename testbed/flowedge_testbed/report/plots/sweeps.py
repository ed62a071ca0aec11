"""Plots of tokens/s along the axes of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flowedge_testbed.report.entries import Entry, Variant, mean_of, unique
from flowedge_testbed.report.paper import counterpart
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
from flowedge_testbed.report.same_results import EqualModels, EqualVariants, equal_models, equal_variants

_PANEL = 4.2  # inches, as all lengths here; the width of a panel without the labels of its lines
_LEAST_HEIGHT = 2.8
_LEFT, _BOTTOM, _BEFORE_LABEL = 0.65, 0.55, 0.25
_TITLE_SIZE = 9.0  # points
_LINE = 0.16  # height of a line of text
_LONGEST_LABEL = 2.6


@dataclass(frozen=True)
class LineEnd:
    """The label at the end of a line, whose last value is `speed` tokens/s."""

    speed: float
    lines: tuple[str, ...]
    ink: str

    @classmethod
    def named(cls, name: str, speed: float, ink: str) -> LineEnd:
        return cls(speed, tuple(wrapped(f"{name} {three_digits(speed)}", NOTE_SIZE, _LONGEST_LABEL)), ink)


@dataclass(frozen=True)
class SweepPanel:
    """The lines of equal models along an axis.

    Attributes:
        speeds: tokens/s at each value of the axis, by method; published: figures of others, by their label.
    """

    models: EqualModels
    values: Sequence[float]
    speeds: Sequence[tuple[EqualVariants, Sequence[float | None]]]
    published: Mapping[str, Sequence[float]]

    @property
    def ends(self) -> list[LineEnd]:
        found = [
            LineEnd.named(method.label, speeds[-1], colour(method.first.method))
            for method, speeds in self.speeds
            if speeds[-1] is not None
        ]
        return found + [LineEnd.named(name, speeds[-1], "#666666") for name, speeds in self.published.items()]


def sweep_panels(
    entries: Sequence[Entry], axis: str, published: Mapping[str, Sequence[float]]
) -> list[SweepPanel]:
    """Return a panel for each model, with equal models and, within a panel, equal methods only once."""
    values = unique(entry["point"][axis] for entry in entries)
    panels = []
    for models in equal_models(entries):
        mine = models.of(entries)
        methods = equal_variants(mine)
        theirs = {
            f"{method.first.method}, published": published[counterpart(method.first)]
            for method in methods
            if len(published.get(counterpart(method.first), ())) == len(values)
        }
        panels.append(
            SweepPanel(models, values, [(m, _means(m, mine, axis, values)) for m in methods], theirs)
        )
    return panels


def _means(
    method: EqualVariants, entries: Sequence[Entry], axis: str, values: Sequence[float]
) -> list[float | None]:
    own = method.first.of(entries)
    return [mean_of([e for e in own if e["point"][axis] == value], "tokens_per_s") for value in values]


def draw_lines(
    entries: Sequence[Entry],
    axis: str,
    label: str,
    heading: Heading,
    published: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Draw a panel for each model: means over datasets by method, and published figures dotted in grey.

    Each line ends in the method's name and its tokens/s at the last value of the axis.
    """
    panels = sweep_panels(entries, axis, published or {})
    ends = [panel.ends for panel in panels]
    beside = _BEFORE_LABEL + max(
        (text_width(line, NOTE_SIZE) for labels in ends for end in labels for line in end.lines), default=0.0
    )
    titles = [wrapped(panel.models.label, _TITLE_SIZE, _PANEL, bold=True) for panel in panels]
    high = max(_LEAST_HEIGHT, *(_LINE * sum(len(end.lines) for end in labels) for labels in ends))
    above = _LINE * max(map(len, titles)) + 2 * MARGIN
    each = _LEFT + _PANEL + beside + MARGIN
    figure, whole = empty_figure(each * len(panels), _BOTTOM + high + above, heading)
    width = each * len(panels)
    for place, (panel, labels, title) in enumerate(zip(panels, ends, titles, strict=True)):
        left = place * each + _LEFT
        frame = figure.add_axes((left / width, _BOTTOM / whole, _PANEL / width, high / whole))
        frame.set_title("\n".join(title), fontsize=_TITLE_SIZE, fontweight="bold", loc="left")
        _draw_panel(frame, panel, label)
        _label_ends(frame, panel.values[-1], labels, high)
    return figure


def _draw_panel(frame: Any, panel: SweepPanel, label: str) -> None:
    for method, speeds in panel.speeds:
        ink = colour(method.first.method)
        frame.plot(
            panel.values, [np.nan if speed is None else speed for speed in speeds], color=ink, markersize=4.5,
            markerfacecolor=ink if method.first.plain else "white", **line_style(method.first.method),
        )  # fmt: skip
    for theirs in panel.published.values():
        frame.plot(panel.values, theirs, color="#888888", linewidth=1, linestyle=":")
    frame.set_xlabel(label)
    frame.set_ylabel("tokens/s")
    frame.set_xticks(panel.values, [f"{value:g}" for value in panel.values], fontsize=NOTE_SIZE)
    frame.set_ylim(bottom=0)
    tidy(frame)


def _label_ends(frame: Any, last: float, ends: Sequence[LineEnd], height: float) -> None:
    """Write the labels beside the ends of the lines, far enough apart to be read."""
    top = frame.get_ylim()[1]
    places = spread(
        [end.speed / top * height for end in ends], [_LINE * len(end.lines) for end in ends], height
    )
    for end, place in zip(ends, places, strict=True):
        frame.annotate(
            "\n".join(end.lines), (last, end.speed), xytext=(1 + _BEFORE_LABEL / _PANEL, place / height),
            textcoords="axes fraction", fontsize=NOTE_SIZE, va="center", annotation_clip=False,
            parse_math=False, linespacing=1.1,
            arrowprops={
                "arrowstyle": "-", "color": end.ink, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def draw_depth(entries: Sequence[Entry], variant: Variant, heading: Heading) -> Figure:
    """Draw a map of tokens/s by the depth of a round's first tree and of the trees merged into it."""
    mine = variant.of(entries)
    first = unique(entry["point"]["option.depth"] for entry in mine)
    merged = unique(entry["point"]["option.expand_depth"] for entry in mine)
    grid = np.zeros((len(first), len(merged)))
    for row, depth in enumerate(first):
        for column, expand in enumerate(merged):
            there = [
                e
                for e in mine
                if (e["point"]["option.depth"], e["point"]["option.expand_depth"]) == (depth, expand)
            ]
            speed = mean_of(there, "tokens_per_s")
            grid[row, column] = np.nan if speed is None else speed
    figure, axes = new_figure(max(5.6, 1.6 + 0.8 * len(merged)), max(3.0, 1.4 + 0.45 * len(first)), heading)
    panel = axes[0, 0]
    image = panel.imshow(grid, cmap="viridis", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, column), value in np.ndenumerate(grid):
        ink = "black" if value > middle else "white"
        panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    panel.set_xticks(range(len(merged)), [f"{value:g}" for value in merged])
    panel.set_yticks(range(len(first)), [f"{value:g}" for value in first])
    panel.set_xlabel("layers of the trees merged in, d_exp")
    panel.set_ylabel("layers of a round's first tree, d0")
    figure.colorbar(image, ax=panel, label="tokens/s")
    return figure
