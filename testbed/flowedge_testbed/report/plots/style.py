"""The look of plots: colours that differ in grey too, figures with a heading, and texts that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

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
    "pipeinfer": "#BFA500",
    "pipespec": "#661100",
    "pipespec_sync": "#AA4499",
    "specpipe_db": "#332288",
}
_MARKERS = "osD^vP*X<>hp8"
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))

TITLE_SIZE = 11.0  # points, as all sizes of texts
NOTE_SIZE = 8.0
MARGIN = 0.15  # inches, as all lengths of figures
_LEADING = 1.4  # height of a line by the size of its text
_POINTS = 72  # an inch
_SPACE = 0.45  # width of the space between two words by the size of the text, with what letters leave free


@dataclass(frozen=True)
class Heading:
    """The title above a picture, and the notes beneath that say what its figures rest on."""

    title: str
    notes: tuple[str, ...]

    def wrapped(self, width: float) -> tuple[list[str], list[str]]:
        """Return the lines of the title and of the notes, none wider than `width` inches."""
        notes = [line for note in self.notes for line in wrapped(note, NOTE_SIZE, width)]
        return wrapped(self.title, TITLE_SIZE, width, bold=True), notes

    def height(self, width: float) -> float:
        """Return the inches that the heading takes on a figure of this width."""
        title, notes = self.wrapped(width - 2 * MARGIN)
        points = (len(title) * TITLE_SIZE + len(notes) * NOTE_SIZE) * _LEADING
        return points / _POINTS + 2 * MARGIN


def colour(method: str) -> str:
    return _COLOURS.get(method, "#666666")


def line_style(method: str) -> dict[str, Any]:
    """Return the marker and the dashes of a method's line, which tell methods apart without colours."""
    place = list(_COLOURS).index(method) if method in _COLOURS else len(_COLOURS)
    return {"marker": _MARKERS[place % len(_MARKERS)], "linestyle": _DASHES[place % len(_DASHES)]}


def ink_on(background: str) -> str:
    """Return black or white, whichever is easier to read on a colour such as "#0072B2"."""
    red, green, blue = (int(background[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"


@cache
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in inches."""
    if not text:
        return 0.0
    font = FontProperties(weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().x1) / _POINTS


def wrapped(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """Return a text in lines of at most `width` inches; only a longer word makes a line wider."""
    lines: list[str] = []
    reached = 0.0
    for word in text.split():
        beside = reached + _SPACE * size / _POINTS + text_width(word, size, bold=bold)
        if lines and beside <= width:
            lines[-1], reached = f"{lines[-1]} {word}", beside
        else:
            lines.append(word)
            reached = text_width(word, size, bold=bold)
    return lines


def three_digits(value: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    if value == 0:
        return "0"
    return next(
        (f"{value:.{digits}f}" for digits, bound in ((0, 100), (1, 10), (2, 1)) if abs(value) >= bound),
        f"{value:.3f}",
    )


def empty_figure(width: float, height: float, heading: Heading) -> tuple[Figure, float]:
    """Return a figure with a heading above `height` inches, and the height of the whole figure."""
    whole = height + heading.height(width)
    figure = Figure(figsize=(width, whole))
    FigureCanvasAgg(figure)
    title, notes = heading.wrapped(width - 2 * MARGIN)
    top = whole - MARGIN
    for lines, size, weight in ((title, TITLE_SIZE, "bold"), (notes, NOTE_SIZE, "normal")):
        for line in lines:
            top -= size * _LEADING / _POINTS
            figure.text(
                MARGIN / width, top / whole, line, fontsize=size, fontweight=weight, va="bottom", ha="left",
                parse_math=False,
            )  # fmt: skip
    return figure, whole


def new_figure(
    width: float, height: float, heading: Heading, rows: int = 1, columns: int = 1
) -> tuple[Figure, Any]:
    """Return a figure with a heading above panels of a size in inches, and the panels as an array."""
    figure, whole = empty_figure(width, height, heading)
    figure.set_layout_engine("constrained", rect=(0, 0, 1, height / whole))
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG without its date, so that the same figures give the same file."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
    return path


def spread(places: Sequence[float], sizes: Sequence[float], top: float) -> list[float]:
    """Return the centres of things on a line from 0 to `top`, moved so that none covers another.

    The order stays. Things whose sizes together are more than `top` reach below 0.
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved, reached = list(places), 0.0
    for index in order:
        moved[index] = max(places[index], reached + sizes[index] / 2)
        reached = moved[index] + sizes[index] / 2
    reached = top
    for index in reversed(order):
        moved[index] = min(moved[index], reached - sizes[index] / 2)
        reached = moved[index] - sizes[index] / 2
    return moved


def tidy(axes: Any) -> None:
    """Leave only the axes and a light horizontal grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
