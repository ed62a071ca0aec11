"""The pictures of a report: which are drawn, from which entries, and under which heading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.entries import Entry, Variant, safe_name
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.figures.sweep_tables import SPEED, axes_of, axis_title
from flowedge_testbed.report.leads import leads
from flowedge_testbed.report.origin import Origin, origin_of_request
from flowedge_testbed.run_backends import LIVE, make_run_backend
from flowedge_testbed.runs import Run, RunPlan, Setup, Task
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.scenario_parts import Plot
from flowedge_testbed.stored_runs import read_record, read_trace
from flowedge_testbed.trace import Trace

DEFAULT_PLOTS: tuple[Plot, ...] = ("bars", "gantt")


def plots_of(scenario: Scenario) -> tuple[Plot, ...]:
    """Return the plots of a scenario's report."""
    return tuple(scenario.report.plots) or DEFAULT_PLOTS


@dataclass(frozen=True)
class ChartedRuns:
    """The runs that have a Gantt chart: of the first prompt on the first pipeline, one by each method.

    Attributes:
        task: with these runs alone; methods: by the key of a run.
    """

    task: Task
    methods: dict[str, Variant]

    @classmethod
    def of(cls, scenario: Scenario, plan: RunPlan) -> ChartedRuns:
        """Return the charted runs, maybe none. Methods that have the same run have one chart.

        A tuned method has none: which setting is the best is not known before the runs.
        """
        task, first = plan.tasks[0], plan.cells[0]
        found: dict[str, Variant] = {}
        for cell in plan.cells if "gantt" in plots_of(scenario) else ():
            same = (cell.case, cell.dataset, cell.temperature) == (
                first.case,
                first.dataset,
                first.temperature,
            )
            if (
                same
                and cell.setting is None
                and cell.method not in [variant.method for variant in found.values()]
            ):
                found.setdefault(cell.keys[0], Variant(cell.method, cell.noise))
        return cls(replace(task, runs=tuple(run for run in task.runs if run.key in found)), found)


@dataclass(frozen=True)
class Picture:
    """A picture that was written, and what it shows."""

    path: Path
    caption: str

    @property
    def markdown(self) -> str:
        return f"![{self.caption}]({self.path.name})"


@dataclass(frozen=True)
class PictureSource:
    """What the pictures of a benchmark are drawn from.

    Attributes:
        stored: directory of the runs and true paths; directory: of the pictures.
    """

    scenario: Scenario
    entries: Sequence[Entry]
    origin: Origin
    plan: RunPlan
    models: ModelSet
    stored: Path
    directory: Path


def draw_pictures(source: PictureSource) -> list[Picture]:
    """Draw the plots of the scenario's report, and return them in their order."""
    return [picture for name in plots_of(source.scenario) for picture in _draw(name, source)]


def _draw(name: Plot, source: PictureSource) -> Iterator[Picture]:
    # matplotlib takes a second to import.
    from flowedge_testbed.report.plots.bars import draw_bars  # noqa: PLC0415
    from flowedge_testbed.report.plots.histograms import draw_accepted  # noqa: PLC0415
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

    title, notes = source.scenario.title, source.origin.lines
    path = source.directory / f"{name}.png"
    match name:
        case "bars":
            yield Picture(
                save(draw_bars(source.entries, Heading(title, notes)), path),
                "tokens/s of each method, by model, temperature and dataset",
            )
        case "sweep":
            yield from _draw_sweep(source)
        case "accepted":
            heading = Heading(f"{title}: tokens that come out with a returned segment", notes)
            yield Picture(
                save(draw_accepted(source.entries, heading), path), "tokens with a returned segment"
            )
        case "places":
            yield from _draw_leads(source, path)
        case "gantt":
            yield from _draw_gantts(source)


def _draw_sweep(source: PictureSource) -> Iterator[Picture]:
    """Draw each figure of a sweep: lines along one axis, or a map of two for each method."""
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415
    from flowedge_testbed.report.plots.sweeps import draw_lines, draw_map, sweep_maps  # noqa: PLC0415

    axes = axes_of(source.entries)
    by = " and ".join(map(axis_title, axes))
    for name in source.scenario.report.columns or [SPEED]:
        file, shown = "sweep" if name == SPEED else f"sweep-{name}", COLUMNS[name].title
        title = f"{source.scenario.title}: {shown} by {by}"
        if len(axes) == 1:
            figure = draw_lines(source.entries, axes[0], name, Heading(title, source.origin.lines))
            yield Picture(save(figure, source.directory / f"{file}.png"), f"{shown} by {by}")
        elif len(axes) == 2:
            for each in sweep_maps(source.entries):
                heading = Heading(f"{title}: {each.title}", source.origin.lines)
                figure = draw_map(each, (axes[0], axes[1]), name, heading)
                path = source.directory / f"{file}-{each.file_name}.png"
                yield Picture(save(figure, path), f"{shown} of {each.title} by {by}")


def _draw_leads(source: PictureSource, path: Path) -> Iterator[Picture]:
    """Draw auto beside the best other method, if both were measured at a place."""
    from flowedge_testbed.report.plots.bars import draw_leads  # noqa: PLC0415
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

    found = leads(source.entries)
    if found:
        title = "tokens/s of auto over those of the best other method, by place; grey dots: plain decoding"
        figure = draw_leads(found, Heading(title, (source.scenario.title, *source.origin.lines)))
        yield Picture(save(figure, path), title)


def _draw_gantts(source: PictureSource) -> Iterator[Picture]:
    """Draw the first prompt on the first pipeline, for each method that has a chart."""
    from flowedge_testbed.report.plots.gantt import draw_gantt  # noqa: PLC0415
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

    scenario, charted = source.scenario, ChartedRuns.of(source.scenario, source.plan)
    for run, record, trace in _traced(source, charted.task):
        variant = charted.methods[run.key]
        label = variant.label
        origin = origin_of_request(
            scenario,
            _setups_like(source.plan, run),
            source.plan.cells[0].dataset,
            charted.task.sampling.temperature,
            source.models,
        )
        title, caption = f"{label}: what each device did", f"what each device did: {label}"
        notes = origin.lines
        if scenario.clock in LIVE:
            matched = f"clocks of the devices matched to within {1e3 * trace.uncertainty_s:.2f} ms"
            notes, caption = (*notes, f"measured; {matched}"), f"{caption}; measured, {matched}"
        path = source.directory / f"gantt-{safe_name(variant.method)}.png"
        yield Picture(save(draw_gantt(record, trace, Heading(title, notes)), path), caption)


def _setups_like(plan: RunPlan, run: Run) -> list[Setup]:
    """Return the pipelines that share this run: its own, and those of the same numbers."""
    return [run.setup, *(cell.case.setup_of(cell.method) for cell in plan.cells if run.key in cell.keys)]


def _traced(source: PictureSource, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
    """Yield the runs of a task with their traces: stored ones of live runs, others by running them again."""
    if source.scenario.clock not in LIVE:
        with closing(make_run_backend(source.scenario.clock, source.models, source.stored)) as backend:
            yield from backend.measure(task)
        return
    for run in task.runs:
        record, trace = read_record(source.stored, run.key), read_trace(source.stored, run.key)
        if record is not None and trace is not None:
            yield run, record, trace
