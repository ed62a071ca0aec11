"""Bars of auto beside the best other method at each place, a panel for each temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from flowedge_testbed.report.entries import unique
from flowedge_testbed.report.leads import HELD, Lead
from flowedge_testbed.report.plots.style import MARGIN, NOTE_SIZE, Heading, colour, empty_figure, text_width

_BAR = 0.19  # inches, as all lengths here; the place of one bar
_PANEL, _GAP, _ABOVE = 2.6, 0.2, 0.3
_VALUES = 1.15  # width that the values beside the longest bar take
_BEHIND = "#D55E00"


def draw_leads(found: Sequence[Lead], heading: Heading) -> Figure:
    """Draw auto's tokens/s over the best other's as bars with the other's name, and plain decoding's as dots.

    Bars of places where auto is behind have another colour.
    """
    places = unique(lead.place for lead in found)
    kinds = unique((lead.temperature, lead.noise) for lead in found)
    left = 2 * MARGIN + max(text_width(place, NOTE_SIZE) for place in places)
    width, bars = left + len(kinds) * (_PANEL + _GAP) + MARGIN, _BAR * len(places)
    figure, whole = empty_figure(width, bars + _ABOVE + MARGIN, heading)
    most = max(1.0, *(lead.ratio for lead in found))
    for column, (temperature, noise) in enumerate(kinds):
        start = left + column * (_PANEL + _GAP)
        panel = figure.add_axes((start / width, MARGIN / whole, _PANEL / width, bars / whole))
        panel.set_xlim(0, most * _PANEL / (_PANEL - _VALUES))
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
