"""The pictures of a report: which are drawn, from which entries, and under which heading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import Plan, Run, Setup, Task
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.entries import Entry, Variant
from flowedge_testbed.report.leads import leads
from flowedge_testbed.report.origin import Origin, origin_of_request
from flowedge_testbed.report.paper import published_bandwidth
from flowedge_testbed.report.same_results import equal_variants
from flowedge_testbed.run_backends import LIVE, make_run_backend
from flowedge_testbed.scenario import Plot, Scenario
from flowedge_testbed.trace import Trace
from flowedge_testbed.workers import read_record, read_trace

DEFAULT_PLOTS: tuple[Plot, ...] = ("bars", "gantt")
GANTT_METHODS = ("naive_pp", "flowspec_paper", "flowspec", "auto")


def plots_of(scenario: Scenario) -> tuple[Plot, ...]:
    """Return the plots of a scenario's report."""
    return tuple(scenario.report.plots) or DEFAULT_PLOTS


def charted(scenario: Scenario, plan: Plan) -> Task:
    """Return the first task with its first run by each method that has a chart, maybe none."""
    methods = [name for name in GANTT_METHODS if name in scenario.strategies] or scenario.strategies[-1:]
    task = plan.tasks[0]
    runs: dict[str, Run] = {}
    for run in task.runs:
        if run.strategy in methods and "gantt" in plots_of(scenario):
            runs.setdefault(run.strategy, run)
    return replace(task, runs=tuple(runs.values()))


DEPTHS = ("option.depth", "option.expand_depth")


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
    plan: Plan
    models: ModelSet
    stored: Path
    directory: Path


def draw_pictures(source: PictureSource) -> list[Picture]:
    """Draw the plots of the scenario's report, and return them in their order."""
    return [picture for name in plots_of(source.scenario) for picture in _draw(name, source)]


def swept(entries: Sequence[Entry], axis: str) -> list[Entry]:
    """Return the entries of a sweep along an axis."""
    return [entry for entry in entries if axis in entry["point"]]


def of_depths(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of a sweep along both depths of draft trees."""
    return [entry for entry in entries if all(axis in entry["point"] for axis in DEPTHS)]


def _draw(name: Plot, source: PictureSource) -> Iterator[Picture]:
    # matplotlib takes a second to import.
    from flowedge_testbed.report.plots.bars import draw_bars  # noqa: PLC0415
    from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415
    from flowedge_testbed.report.plots.sweeps import draw_depth, draw_lines  # noqa: PLC0415

    title, notes = source.scenario.title, source.origin.lines
    path = source.directory / f"{name}.png"
    match name:
        case "bars":
            yield Picture(
                save(draw_bars(source.entries, Heading(title, notes)), path),
                "tokens/s of each method, by model, temperature and dataset",
            )
        case "bandwidth":
            mine, heading = swept(source.entries, "mbps"), Heading(f"{title}: tokens/s by bandwidth", notes)
            figure = draw_lines(mine, "mbps", "Mbit/s", heading, published_bandwidth(mine))
            yield Picture(save(figure, path), "tokens/s by bandwidth")
        case "stages":
            heading = Heading(f"{title}: tokens/s by number of stages", notes)
            figure = draw_lines(swept(source.entries, "stages"), "stages", "verification stages", heading)
            yield Picture(save(figure, path), "tokens/s by number of stages")
        case "depth":
            for method in equal_variants(of_depths(source.entries)):
                heading = Heading(f"{title}: tokens/s of {method.label}", notes)
                figure = draw_depth(of_depths(source.entries), method.first, heading)
                file = source.directory / f"depth-{method.first.file_name}.png"
                yield Picture(save(figure, file), f"tokens/s of {method.label} by depth of the trees")
        case "places":
            yield from _draw_leads(source, path)
        case "gantt":
            yield from _draw_gantts(source)


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

    scenario, task = source.scenario, charted(source.scenario, source.plan)
    for run, record, trace in _traced(source, task):
        label = Variant(run.strategy, run.noise).label
        origin = origin_of_request(
            scenario,
            _setups_like(source.plan, run),
            source.plan.cells[0].dataset,
            task.sampling.temperature,
            source.models,
        )
        title, caption = f"{label}: what each device did", f"what each device did: {label}"
        notes = origin.lines
        if scenario.clock in LIVE:
            matched = f"clocks of the devices matched to within {1e3 * trace.uncertainty_s:.2f} ms"
            notes, caption = (*notes, f"measured; {matched}"), f"{caption}; measured, {matched}"
        path = source.directory / f"gantt-{run.strategy}.png"
        yield Picture(save(draw_gantt(record, trace, Heading(title, notes)), path), caption)


def _setups_like(plan: Plan, run: Run) -> list[Setup]:
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
