"""The texts of a figure as a reader sees them, and the texts that the figure's edge cuts off."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def shown_texts(figure: Figure) -> Iterator[Text]:
    """Yield every text that is drawn; ticks outside of an axis are not."""
    yield from figure.texts
    for legend in figure.legends:
        yield from legend.get_texts()
    for panel in figure.axes:
        yield from panel.texts
        yield from (panel.xaxis.label, panel.yaxis.label)
        titled = {place: panel.get_title(loc=place) for place in ("left", "center", "right")}
        yield from (text for text in panel.findobj(Text) if text.get_text() in titled.values())
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    yield tick.label1


def texts(figure: Figure) -> list[str]:
    """Return the texts of a figure, each on one line."""
    return [" ".join(text.get_text().split()) for text in shown_texts(figure) if text.get_text().strip()]


def cut_texts(figure: Figure) -> list[str]:
    """Return the texts that are not wholly on the canvas."""
    assert isinstance(figure.canvas, FigureCanvasAgg)
    figure.canvas.draw()
    canvas = figure.bbox
    return [
        text.get_text()
        for text in shown_texts(figure)
        if text.get_visible()
        and text.get_text().strip()
        and not (
            canvas.x0 <= text.get_window_extent().x0
            and text.get_window_extent().x1 <= canvas.x1
            and canvas.y0 <= text.get_window_extent().y0
            and text.get_window_extent().y1 <= canvas.y1
        )
    ]


def overlapping(found: list[Text]) -> list[tuple[str, str]]:
    """Return the pairs of texts that cover each other; the line from a label to its point does not count."""
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in found]
    return [
        (first, second)
        for index, (first, box) in enumerate(boxes)
        for second, other in boxes[index + 1 :]
        if box.overlaps(other)
    ]
