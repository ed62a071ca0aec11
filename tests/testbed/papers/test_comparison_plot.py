"""The plot of an experiment: lines over numbers, otherwise a panel of dots for each column."""

from __future__ import annotations

from flowedge_testbed.papers.comparison import ComparedSeries
from flowedge_testbed.papers.comparison_plot import draw_comparison
from flowedge_testbed.papers.declaration import Experiment, Series
from flowedge_testbed.report.plots.style import Heading

HEADING = Heading("an experiment", ("filled: here; hollow: in the paper",))


def experiment(axis: str | None) -> Experiment:
    series = {"a": Series(ours={"method": "auto"})}
    return Experiment(shows="a sweep", scenario="bandwidth", axis=axis, series=series)


def test_a_sweep_is_drawn_as_lines_whose_places_are_the_values() -> None:
    compared = [ComparedSeries("a", {"250": 2.0, "125": 1.0}, {"125": 1.5, "250": "2 to 3", "1000": 4.0})]
    (panel,) = draw_comparison(experiment("mbps"), compared, HEADING).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.get_lines()]
    assert lines == [([125, 250], [1.0, 2.0]), ([125, 1000], [1.5, 4.0])], "a range has no place"
    assert list(panel.get_xticks()) == [125, 250, 1000]


def test_names_are_drawn_as_panels_of_dots() -> None:
    compared = [
        ComparedSeries("a", {"humaneval": 2.0, "mean": 3.0}, {"humaneval": 1.5}),
        ComparedSeries("b", {}, {"mean": 9.0}),
    ]
    figure = draw_comparison(experiment("dataset"), compared, HEADING)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["humaneval", "mean"]
    first, mean = figure.axes
    dots = [line.get_xydata().tolist() for line in first.get_lines() if line.get_marker() == "o"]
    assert dots == [[[2.0, 0.0]], [[1.5, 0.0]]]
    assert mean.get_xlim()[1] > 9
