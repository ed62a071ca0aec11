"""The pictures of a scenario with load: lines along the load points, and charts with sessions in colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flowedge_testbed.load.load_plan import LoadCell, LoadPlan
from flowedge_testbed.report.entries import Entry, Variant, safe_name
from flowedge_testbed.report.load.load_groups import LoadPlace, load_places
from flowedge_testbed.report.origin import Origin
from flowedge_testbed.report.pictures import Picture, plots_of
from flowedge_testbed.report.plots.style import (
    NOTE_SIZE,
    Heading,
    colour,
    line_style,
    new_figure,
    tidy,
    wrapped,
)
from flowedge_testbed.run_backends import LIVE
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.stored_runs import read_load_record, read_trace

_PANELS = (
    ("tokens_per_s", 1.0, "tokens/s, all clients"),
    ("itl_p99_ms", 1e3, "seconds between tokens, p99"),
    ("ttft_p99_ms", 1e3, "seconds to the first token, p99"),
    ("latency_p99_ms", 1e3, "seconds to the last token, p99"),
)
_WIDTH, _HEIGHT = 15.0, 4.4  # inches
_CURVE = 7.5  # width of the picture of the curves
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


def draw_curves(place: LoadPlace, heading: Heading) -> Figure:
    """Draw tokens/s of all clients against the mean time a token: a curve for each method.

    SpecPipe's figure 16 has these axes, and a mark for each load. The more to the left and the higher, the
    better. The marks are joined in the order of the load, and the last has its value.
    """
    figure, axes = new_figure(_CURVE, _HEIGHT, heading)
    panel = axes[0, 0]
    for variant in place.variants:
        own = variant.of(place.entries)
        known = [entry for entry in own if entry["per_token_mean_ms"] is not None]
        ink = colour(variant.method)
        panel.plot(
            [entry["per_token_mean_ms"] for entry in known], [entry["tokens_per_s"] for entry in known],
            color=ink, markersize=4.5, markerfacecolor=ink if variant.plain else "white", label=variant.label,
            linewidth=0.8 if own[0]["static_batches"] else 1.6, **line_style(variant.method),
        )  # fmt: skip
        for entry in known[-1:]:
            panel.annotate(
                f"{entry['at']:g}", (entry["per_token_mean_ms"], entry["tokens_per_s"]), xytext=(4, 4),
                textcoords="offset points", fontsize=NOTE_SIZE,
            )  # fmt: skip
    panel.set_xlabel(f"ms a token, mean of the answers; numbers are {_LABELS[place.kind]}")
    panel.set_ylabel(_PANELS[0][2])
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    tidy(panel)
    panel.legend(frameon=False, fontsize=NOTE_SIZE)
    return figure


MOST_CHARTED = 8  # clients whose sessions a chart can tell apart well


def charted_load(scenario: Scenario, plan: LoadPlan) -> list[LoadCell]:
    """Return the load points that have a chart: of each method on the first pipeline, 8 clients at most."""
    if "gantt" not in plots_of(scenario):
        return []
    found: dict[str, LoadCell] = {}
    for cell in plan.cells:
        same = (cell.case, cell.temperature) == (plan.cells[0].case, plan.cells[0].temperature)
        if not same:
            continue
        before = found.get(cell.method)
        if before is None or (cell.noise == before.noise and _is_better(cell, before)):
            found[cell.method] = cell
    return list(found.values())


def _is_better(cell: LoadCell, before: LoadCell) -> bool:
    """Whether a cell has more clients than another, but not too many."""
    of_clients = cell.load.point.kind == before.load.point.kind == "clients"
    return of_clients and before.load.point.value < cell.load.point.value <= MOST_CHARTED


def draw_load_pictures(
    scenario: Scenario,
    plan: LoadPlan,
    entries: Sequence[Entry],
    origin: Origin,
    directory: Path,
    stored: Path,
) -> list[Picture]:
    """Draw the lines of each place, and the charts; return them in their order.

    Args:
        directory: of the pictures; stored: of the runs.
    """
    return [
        *_lines(scenario, entries, origin, directory),
        *_charts(scenario, plan, origin, directory, stored),
    ]


def _lines(
    scenario: Scenario, entries: Sequence[Entry], origin: Origin, directory: Path
) -> Iterator[Picture]:
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

    for place in load_places(entries):
        title = f"{scenario.title}: {place.label}"
        figure = draw_load_lines(place, Heading(title, origin.lines))
        path = directory / f"{place.file_name}.png"
        yield Picture(save(figure, path), f"tokens/s and times of the answers by load: {place.label}")
        if len(place.values) > 1:
            figure = draw_curves(place, Heading(title, origin.lines))
            path = directory / f"{place.file_name}-curve.png"
            yield Picture(save(figure, path), f"tokens/s against the time a token: {place.label}")


def _charts(
    scenario: Scenario, plan: LoadPlan, origin: Origin, directory: Path, stored: Path
) -> Iterator[Picture]:
    from flowedge_testbed.report.load.load_gantt import draw_load_gantt  # noqa: PLC0415
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

    for cell in charted_load(scenario, plan):
        key = cell.load.key
        record, trace = read_load_record(stored, key), read_trace(stored, key)
        if record is None or trace is None:
            continue
        label = f"{Variant(cell.method, cell.noise).label}, {cell.load.point.label}"
        title, caption = f"{label}: what each device did", f"what each device did: {label}"
        notes: tuple[str, ...] = (f"{cell.case.profile}: {origin.devices}", *origin.lines[1:])
        if scenario.clock in LIVE:
            matched = f"clocks of the devices matched to within {1e3 * trace.uncertainty_s:.2f} ms"
            notes, caption = (*notes, f"measured; {matched}"), f"{caption}; measured, {matched}"
        path = directory / f"gantt-{safe_name(cell.method)}.png"
        yield Picture(save(draw_load_gantt(record, trace, Heading(title, notes)), path), caption)
