"""The plot of an experiment in the axes of the paper's figure: ours filled, the paper's hollow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flowedge_testbed.papers.comparison import ComparedSeries, columns
from flowedge_testbed.papers.declaration import MEAN, Experiment
from flowedge_testbed.report.plots.style import NOTE_SIZE, Heading, new_figure, text_width, tidy
from flowedge_testbed.scenario import OPTION

_INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#7A1FA2", "#661100")
_PANEL, _ROW = 1.7, 0.26  # inches: the width of a column's panel, the height of a series in it


def draw_comparison(experiment: Experiment, compared: Sequence[ComparedSeries], heading: Heading) -> Figure:
    """Draw lines over the columns if these are numbers, otherwise a panel of dots for each column."""
    names = [name for name in columns(compared) if name != MEAN]
    if experiment.axis not in (None, "dataset", "profile", "method") and len(names) > 1:
        return _draw_lines(experiment, compared, [float(name) for name in names], heading)
    return _draw_dots(experiment, compared, columns(compared), heading)


def _draw_lines(
    experiment: Experiment, compared: Sequence[ComparedSeries], places: Sequence[float], heading: Heading
) -> Figure:
    figure, frames = new_figure(6.4, 3.2, heading)
    panel = frames[0, 0]
    for each, ink in zip(compared, _inks(compared), strict=True):
        for values, label, style in (
            (each.ours, each.label, {"marker": "o"}),
            (
                each.published,
                f"{each.label}, in the paper",
                {"marker": "o", "mfc": "white", "linestyle": ":"},
            ),
        ):
            known = sorted((float(name), value) for name, value in _numbers(values).items() if name != MEAN)
            if known:
                panel.plot(*zip(*known, strict=True), color=ink, markersize=4.5, label=label, **style)
    panel.set_xlabel((experiment.axis or "").removeprefix(OPTION))
    panel.set_ylabel(experiment.unit)
    panel.set_xticks(places, [f"{place:g}" for place in places], fontsize=NOTE_SIZE)
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=NOTE_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    tidy(panel)
    return figure


def _draw_dots(
    experiment: Experiment, compared: Sequence[ComparedSeries], names: Sequence[str], heading: Heading
) -> Figure:
    labels = [each.label for each in compared]
    beside = max(text_width(label, NOTE_SIZE) for label in labels)
    width, height = max(4.5, beside + _PANEL * len(names)), 0.9 + _ROW * len(labels)
    figure, frames = new_figure(width, height, heading, columns=len(names))
    for panel, name in zip(frames[0], names, strict=True):
        for row, (each, ink) in enumerate(zip(compared, _inks(compared), strict=True)):
            ends = [value for value in (each.ours.get(name), _numbers(each.published).get(name)) if value]
            panel.plot(ends, [row] * len(ends), color=ink, linewidth=1)
            for values, filling in ((each.ours, ink), (_numbers(each.published), "white")):
                if name in values:
                    panel.plot(values[name], row, "o", color=ink, mfc=filling, markersize=5)
        panel.set_title(name if len(names) > 1 else "", fontsize=NOTE_SIZE, fontweight="bold", loc="left")
        panel.set_yticks(range(len(labels)), labels if panel is frames[0][0] else [""] * len(labels))
        panel.set_ylim(len(labels) - 0.5, -0.5)
        panel.set_xlim(0, 1.08 * panel.get_xlim()[1])  # so that no dot is cut
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.set_xlabel(experiment.unit, fontsize=NOTE_SIZE)
        panel.tick_params(labelsize=NOTE_SIZE)
        tidy(panel)
    return figure


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers; a range has no place on an axis."""
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _inks(compared: Sequence[ComparedSeries]) -> list[str]:
    return [_INKS[index % len(_INKS)] for index in range(len(compared))]
