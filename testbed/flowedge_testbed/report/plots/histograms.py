"""Histograms of the tokens that come out with a returned segment."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.plots.style import NOTE_SIZE, Heading, colour, line_style, new_figure, tidy
from flowedge_testbed.report.same_results import panels
from flowedge_testbed.report.tables import accepted_shares

_PANEL, _HEIGHT = 5.0, 3.2  # inches


def draw_accepted(entries: Sequence[Entry], heading: Heading) -> Figure:
    """Draw a panel for each model, point and temperature: a line for each method through its shares."""
    shown = panels(entries)
    figure, axes = new_figure(_PANEL * len(shown), _HEIGHT, heading, columns=len(shown))
    for panel, content in zip(axes[0], shown, strict=True):
        for method in content.methods:
            shares, ink = accepted_shares(method.first.of(content.entries)), colour(method.first.method)
            panel.plot(
                range(len(shares)), [100 * share for share in shares], color=ink, label=method.label,
                markersize=4.5, markerfacecolor=ink if method.first.plain else "white",
                **line_style(method.first.method),
            )  # fmt: skip
        panel.set_title(content.title, fontsize=NOTE_SIZE, loc="left")
        panel.set_xlabel("tokens that come out with a segment")
        panel.set_ylabel("percent of the segments")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False, fontsize=NOTE_SIZE)
        tidy(panel)
    return figure
