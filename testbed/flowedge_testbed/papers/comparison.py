"""What was measured here beside the values of a paper, series by series and column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from flowedge_testbed.papers.declaration import MEAN, Experiment, Published, Series, column
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.markdown import number, table
from flowedge_testbed.report.pipespec_tables import hierarchies, predicted_speedup
from flowedge_testbed.scenario import OPTION

VARIATION = "variation"  # a figure: how much tokens/s differ from prompt to prompt
EQUATION4 = (
    "equation4"  # a figure: the speed-up of PipeSpec that its equation 4 predicts from what was counted
)
_MEANS = (None, "dataset")  # axes of which the mean is a column


@dataclass(frozen=True)
class ComparedSeries:
    """A series: both values by column. A column that one of them lacks is missing there."""

    label: str
    ours: Mapping[str, float]
    published: Published


def entries_of(results: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of results.json: of single requests, or of load points."""
    found: list[Entry] = results.get("load") or results["runs"]
    return found


def compare(experiment: Experiment, entries: Sequence[Entry]) -> list[ComparedSeries]:
    """Return every series of an experiment with what the entries give for it."""
    return [
        ComparedSeries(label, _ours(experiment, series, entries), series.published)
        for label, series in experiment.series.items()
    ]


def columns(compared: Sequence[ComparedSeries]) -> list[str]:
    """Return all columns: numbers ascending, names in the order of the entries, the mean last."""
    found = dict.fromkeys(name for each in compared for name in [*each.ours, *each.published])
    names = [name for name in found if name != MEAN]
    if names and all(_is_number(name) for name in names):
        names.sort(key=float)
    return names + [MEAN] * (MEAN in found)


def comparison_table(experiment: Experiment, compared: Sequence[ComparedSeries]) -> str:
    """Return the table of an experiment: two rows a series, ours and the paper's."""
    named = columns(compared)
    rows: list[list[str]] = []
    for each in compared:
        if each.ours or not each.published:
            rows.append([each.label, *(_shown(each.ours.get(name)) for name in named)])
        if each.published:
            theirs = [_shown(each.published.get(name)) for name in named]
            first = "*in the paper*" if each.ours else f"{each.label}, *in the paper*"
            rows.append([first, *(f"*{value}*" if value else "" for value in theirs)])
    heads = [experiment.unit] if named == [MEAN] else named
    return table([(experiment.axis or "").removeprefix(OPTION), *heads], rows)


def _ours(experiment: Experiment, series: Series, entries: Sequence[Entry]) -> dict[str, float]:
    if not series.ours:
        return {}
    figure, axis = series.figure or experiment.figure, experiment.axis
    mine = _selected(entries, series.ours)
    base = _selected(entries, {**series.ours, **series.over}) if series.over else None
    found: dict[str, float | None] = {}
    if axis is not None:
        for value in dict.fromkeys(field(entry, axis) for entry in mine):
            there = [entry for entry in mine if field(entry, axis) == value]
            below = (
                None if base is None else [e for e in base if axis in series.over or field(e, axis) == value]
            )
            found[column(value)] = _ratio(there, below, figure)
    if axis in _MEANS:
        found[MEAN] = _ratio(mine, base, figure)
    return {name: value for name, value in found.items() if value is not None}


def _selected(entries: Sequence[Entry], fields: Mapping[str, Any]) -> list[Entry]:
    wanted = {"noise": "plain", **fields}
    return [e for e in entries if all(field(e, name) == value for name, value in wanted.items())]


def field(entry: Entry, name: str) -> Any:
    """Return the value of a sweep axis, or of a field of an entry; None if it has none of this name."""
    return entry["point"].get(name, entry.get(name))


def _ratio(entries: Sequence[Entry], base: Sequence[Entry] | None, figure: str) -> float | None:
    """Return the mean of a figure over entries, divided by that over `base` if it is given."""
    ours = mean_figure(entries, figure)
    if base is None or ours is None:
        return ours
    below = mean_figure(base, figure)
    return ours / below if below else None


def mean_figure(entries: Sequence[Entry], figure: str) -> float | None:
    """Return the mean of a figure over entries; None if it was not measured.

    Args:
        figure: a figure that reports show, by its name there; VARIATION or EQUATION4; or a path of keys of
            the entries, in which * stands for all keys, such as use.*.busy.
    """
    if figure in _COMPUTED:
        return _COMPUTED[figure](entries)
    shown = {str(name): column for name, column in COLUMNS.items()}
    if figure in shown:
        return shown[figure].value(entries) if entries else None
    values = [value for entry in entries for value in _values(entry, figure)]
    return fmean(values) if values else None


def _variation(entries: Sequence[Entry]) -> float | None:
    """Return the standard deviation of tokens/s over all prompts by their mean; None for fewer than two."""
    prompts = [entry["by_prompt"] for entry in entries]
    pairs = [pair for each in prompts for pair in zip(each["tokens"], each["seconds"], strict=True)]
    speeds = [tokens / seconds for tokens, seconds in pairs if seconds]
    return stdev(speeds) / fmean(speeds) if len(speeds) > 1 else None


def _equation4(entries: Sequence[Entry]) -> float | None:
    """Return the speed-up that PipeSpec's equation 4 gives for a method; None if it has no hierarchy."""
    return next((predicted_speedup(each, None) for each in hierarchies(entries, ())), None)


_COMPUTED = {VARIATION: _variation, EQUATION4: _equation4}


def _values(entry: Entry, path: str) -> list[float]:
    found: list[Any] = [entry]
    for key in path.split("."):
        inner = [each for each in found if isinstance(each, dict)]
        found = [value for each in inner for value in (each.values() if key == "*" else [each.get(key)])]
    return [float(value) for value in found if isinstance(value, int | float)]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _shown(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else number(value)
