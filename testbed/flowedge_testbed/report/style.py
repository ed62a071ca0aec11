"""The look of plots: colours, figures and axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can distinguish.
_COLOURS = {
    "auto": "#7A1FA2",
    "autoregressive": "#999999",
    "naive_pp": "#000000",
    "pruned_pp": "#56B4E9",
    "flowspec_no_sbd": "#009E73",
    "flowspec_paper": "#E69F00",
    "flowspec": "#D55E00",
    "pipedec": "#0072B2",
    "specpipe": "#CC79A7",
    "pipeinfer": "#F0E442",
    "pipespec": "#661100",
    "pipespec_sync": "#AA4499",
}


def colour(method: str) -> str:
    return _COLOURS.get(method, "#666666")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure of a size in inches, and its axes as an array [rows, columns]."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without its date, so that the same figures give the same file."""
    # A long legend may be wider than its figure.
    figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return path


def tidy(axes: Any) -> None:
    """Leave only the axes and a light horizontal grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
