"""Lines along the load: tokens/s of all clients, and the slowest gaps between tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flowedge_testbed.report.entries import Variant
from flowedge_testbed.report.load.load_groups import LoadPlace
from flowedge_testbed.report.plots.style import (
    NOTE_SIZE,
    Heading,
    colour,
    line_style,
    new_figure,
    tidy,
    wrapped,
)

_PANELS = (
    ("tokens_per_s", 1.0, "tokens/s, all clients"),
    ("itl_p99_ms", 1e3, "seconds between tokens, p99"),
    ("ttft_p99_ms", 1e3, "seconds to the first token, p99"),
)
_WIDTH, _HEIGHT = 13.0, 4.4  # inches
_LABELS = {"clients": "clients", "arrivals_per_s": "requests that arrive in a second"}
_COLUMNS = 5  # of the legend
_LONGEST = 2.3  # inches, of a line of the legend


def draw_load_lines(place: LoadPlace, heading: Heading) -> Figure:
    """Draw a panel for each figure with a line for each method; lines of static batches are thin."""
    figure, axes = new_figure(_WIDTH, _HEIGHT, heading, columns=len(_PANELS))
    for panel, (name, unit, label) in zip(axes[0], _PANELS, strict=True):
        for variant in place.variants:
            _line(panel, place, variant, [None if v is None else v / unit for v in place.line(variant, name)])
        panel.set_xlabel(_LABELS[place.kind])
        panel.set_ylabel(label)
        if place.kind == "clients":
            panel.set_xscale("log", base=2)
        panel.set_xticks(place.values, [f"{value:g}" for value in place.values], fontsize=NOTE_SIZE)
        panel.minorticks_off()
        panel.set_ylim(bottom=0)
        tidy(panel)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=min(_COLUMNS, len(names)), frameon=False,
        fontsize=NOTE_SIZE,
    )  # fmt: skip
    return figure


def _line(panel: Any, place: LoadPlace, variant: Variant, values: Sequence[float | None]) -> None:
    own = variant.of(place.entries)[0]
    batches = own["static_batches"]
    ink = colour(variant.method)
    panel.plot(
        place.values, [np.nan if value is None else value for value in values], color=ink, markersize=4.5,
        markerfacecolor=ink if variant.plain else "white", linewidth=0.8 if batches else 1.6,
        label="\n".join(wrapped(variant.label, NOTE_SIZE, _LONGEST)), **line_style(variant.method),
    )  # fmt: skip
