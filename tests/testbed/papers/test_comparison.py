"""The figures of a run beside those of the paper, by series and column."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge_testbed.papers.comparison import ComparedSeries, columns, compare, comparison_table, mean_figure
from flowedge_testbed.papers.declaration import Experiment, Series
from flowedge_testbed.report.entries import Entry


def entry(method: str, speed: float | None, **fields: Any) -> Entry:
    return {
        "method": method,
        "noise": "plain",
        "temperature": 0,
        "point": {},
        "tokens_per_s": speed,
        **fields,
    }


def experiment(axis: str | None, **series: Series) -> Experiment:
    return Experiment(shows="a sweep", scenario="bandwidth", axis=axis, series=series)


def test_a_ratio_is_of_the_same_column() -> None:
    found = [
        entry("a", 4.0, dataset="x"),
        entry("a", 9.0, dataset="y"),
        entry("b", 2.0, dataset="x"),
        entry("b", 3.0, dataset="y"),
        entry("a", 99.0, dataset="x", noise="shared"),
    ]
    series = Series(ours={"method": "a"}, over={"method": "b"}, published={"x": 1.5, "mean": "1 to 2"})
    (compared,) = compare(experiment("dataset", a=series), found)
    assert compared.ours == {"x": 2.0, "y": 3.0, "mean": pytest.approx(6.5 / 2.5)}
    assert columns([compared]) == ["x", "y", "mean"]
    table = comparison_table(experiment("dataset", a=series), [compared])
    assert table.splitlines()[2:] == [
        "| a | 2.00 | 3.00 | 2.60 |",
        "| *in the paper* | *1.50* |  | *1 to 2* |",
    ]


def test_columns_of_a_sweep_ascend_and_hold_what_only_the_paper_has() -> None:
    found = [entry("a", speed, point={"option.width": width}) for width, speed in ((64, 5.0), (8, 4.0))]
    series = Series(ours={"method": "a"}, published={"16": 1.0})
    (compared,) = compare(experiment("option.width", a=series), found)
    assert compared.ours == {"64": 5.0, "8": 4.0}
    assert columns([compared]) == ["8", "16", "64"]


def test_a_series_of_another_point_is_the_base() -> None:
    found = [entry("a", speed, point={"option.width": width}) for width, speed in ((8, 4.0), (64, 5.0))]
    series = Series(ours={"method": "a", "option.width": 64}, over={"option.width": 8})
    (compared,) = compare(experiment(None, a=series), found)
    assert compared.ours == {"mean": 1.25}


def test_a_series_that_was_not_measured_is_empty() -> None:
    series = {"here": Series(ours={"method": "a"}), "theirs": Series(published={"mean": 3.0})}
    compared = compare(experiment(None, **series), [])
    assert compared == [ComparedSeries("here", {}, {}), ComparedSeries("theirs", {}, {"mean": 3.0})]
    assert comparison_table(experiment(None, **series), compared).splitlines()[2:] == [
        "| here |  |",
        "| theirs, *in the paper* | *3.00* |",
    ]


def test_a_figure_is_one_of_a_report_or_a_path_of_keys() -> None:
    used = {"d0": {"busy": 0.5}, "v1": {"busy": 1.0}}
    found = [entry("a", 4.0, use=used), entry("a", 4.0, use=used)]
    assert mean_figure(found, "use.*.busy") == 0.75
    assert mean_figure(found, "use.d0.busy") == 0.5
    assert mean_figure(found, "use.v9.busy") is None
    assert mean_figure(found, "per_token_ms") == 250.0
    assert mean_figure([], "flushes") is None


def test_the_variation_is_over_the_prompts_of_all_datasets() -> None:
    found = [
        entry("a", 4.0, by_prompt={"tokens": [4.0], "seconds": [1.0]}),
        entry("a", 8.0, by_prompt={"tokens": [0.0, 16.0], "seconds": [0.0, 2.0]}),
    ]
    assert mean_figure(found, "variation") == pytest.approx(8**0.5 / 6)
    assert mean_figure(found[:1], "variation") is None
