"""The document report.md: tables, plots and the settings they were measured with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from flowedge.drafting.choice import drafter_label
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import Plan, Run, Task
from flowedge_testbed.real_pipeline import RealPipeline
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report import detail_tables, sweep_tables, tables
from flowedge_testbed.report.charted import charted, plots_of
from flowedge_testbed.report.entries import Entry, Variant, variants
from flowedge_testbed.report.paper import published_bandwidth
from flowedge_testbed.run_backends import LIVE, make_run_backend
from flowedge_testbed.scenario import Plot, Scenario, Table
from flowedge_testbed.trace import Trace
from flowedge_testbed.workers import read_record, read_trace

DEPTHS = ("option.depth", "option.expand_depth")
_BOUNDS = (
    "The most tokens/s that the rows in flight allow: (1 + C(M)) / T_lat. M is first the rows as sent, then "
    "the rows that are not pruned yet. docs/benchmarks.md explains how it is computed."
)
_NO_PLOTS = "the plots need matplotlib: pip install 'flowedge[bench]'"


def write_report(
    scenario: Scenario, results: Mapping[str, Any], plan: Plan, models: ModelSet, directory: Path
) -> Path:
    """Write report.md and its plots, and return the path of report.md."""
    entries: list[Entry] = results["runs"]
    parts = [f"# {scenario.title}", _settings(scenario, results, plan)]
    for name in _tables(scenario):
        parts += _table(name, scenario, entries)
    parts += ["## Acceptance and latency", detail_tables.detail_table(entries)]
    if any(entry["bound_tokens_per_s"] is not None for entry in entries):
        parts += ["## Share of the bound", _BOUNDS, detail_tables.bounds_table(entries)]
    parts += [
        "## Devices",
        "Computing / sending / waiting, percent of the decode time.",
        detail_tables.use_table(entries),
    ]
    parts += _plots(scenario, entries, plan, models, directory)
    path = directory / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _settings(scenario: Scenario, results: Mapping[str, Any], plan: Plan) -> str:
    git = results["git"]
    revision = (
        "unknown" if git is None else git["revision"][:12] + (" with changes" if git["changed"] else "")
    )
    sets = ", ".join(f"{name} ({found['prompts']})" for name, found in results["datasets"].items())
    left_out = sum(found["left_out_as_too_long"] for found in results["datasets"].values())
    lines = [
        f"- Clock: {scenario.clock}{', quick' if results['quick'] else ''}; code {revision}; "
        + ", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        f"- Prompts: {sets}; {left_out} left out as too long; at most {scenario.max_new_tokens} new tokens; "
        f"seeds {', '.join(map(str, scenario.seeds))}",
        f"- Tokens from: {scenario.pair.model} with drafter {drafter_label(scenario.pair.drafter)}",
        *_origin_of_times(plan),
    ]
    if "bundled" in results["datasets"]:
        lines.append("- The scenario's datasets were not found: these are the project's own prompts.")
    if results["outputs_differ"]:
        lines.append(f"- **Outputs differ from the first method's: {', '.join(results['outputs_differ'])}.**")
    else:
        lines.append("- Every method put out the same tokens for the same prompt, temperature and seed.")
    return "\n".join(lines)


def _origin_of_times(plan: Plan) -> list[str]:
    figures = (
        "ξ is tokens after the first over the decode time (prefill apart); "
        "SR is its ratio to naive_pp's with plain drafting, ×AR to plain autoregressive decoding's; "
        "an answer loops if some 16 tokens in a row occur three times in it"
    )
    setup = plan.cells[0].case.setup
    if isinstance(setup, RealPipeline):
        names = ["D0", *(f"V{stage + 1}" for stage in range(setup.num_stages))]
        hosts = ", ".join(f"{name} {device}" for name, device in zip(names, setup.devices, strict=True))
        return [
            f"- Measured, nothing is emulated: {setup.name} on {hosts}. Times are the draft node's own; the "
            "use of the devices is from their timelines.",
            f"- {figures}. The paper's figures are of other devices and models, and not shown.",
        ]
    return [
        f"- Emulated: {', '.join(dict.fromkeys(cell.case.profile for cell in plan.cells))}, "
        "priced by testbed/profiles; the numbers are in results.json",
        f"- {figures}; the paper's own figures are in italics; its FlowSpec is our flowspec_paper.",
    ]


def _tables(scenario: Scenario) -> list[Table]:
    return scenario.report.tables or ["table1"]


def _table(name: Table, scenario: Scenario, entries: Sequence[Entry]) -> list[str]:
    match name:
        case "table1" | "table2" | "table3":
            title, make = {
                "table1": ("Tokens/s and speedup", tables.main_table),
                "table2": ("Ablation", tables.ablation_table),
                "table3": ("Repeated runs", tables.repeat_table),
            }[name]
            like = f" (the paper's table {name[-1]})" if scenario.clock != "real" else ", measured"
            parts = [f"## {title}{like}"]
            for temperature in scenario.temperatures:
                parts += [f"Temperature {temperature:g}", make(entries, temperature)]
            return parts
        case "parts":
            parts = ["## Without each part"]
            for temperature in scenario.temperatures:
                parts += [f"Temperature {temperature:g}", tables.parts_table(entries, temperature)]
            return parts
        case "bandwidth":
            found = sweep_tables.sweep_tables(_swept(entries, "mbps"), "mbps", published_bandwidth(entries))
            return ["## Tokens/s by bandwidth in Mbit/s", *found]
        case "stages":
            found = sweep_tables.sweep_tables(_swept(entries, "stages"), "stages", {})
            return ["## Tokens/s by number of stages", *found]
        case "depth":
            mine = [entry for entry in entries if all(axis in entry["point"] for axis in DEPTHS)]
            parts = ["## Tokens/s by depth of the trees"]
            return [*parts, *(sweep_tables.depth_table(mine, variant) for variant in variants(mine))]


def _swept(entries: Sequence[Entry], axis: str) -> list[Entry]:
    return [entry for entry in entries if axis in entry["point"]]


def _plots(
    scenario: Scenario, entries: Sequence[Entry], plan: Plan, models: ModelSet, directory: Path
) -> list[str]:
    try:
        import matplotlib  # noqa: F401, PLC0415 (an extra, and slow)
    except ImportError:
        return ["## Plots", f"None: {_NO_PLOTS}."]
    parts = ["## Plots"]
    for name in plots_of(scenario):
        for path, caption in _plot(name, scenario, entries, plan, models, directory):
            parts.append(f"![{caption}]({path.name})")
    return parts


def _plot(
    name: Plot, scenario: Scenario, entries: Sequence[Entry], plan: Plan, models: ModelSet, directory: Path
) -> list[tuple[Path, str]]:
    from flowedge_testbed.report.bars import plot_bars  # noqa: PLC0415
    from flowedge_testbed.report.sweep_plots import plot_depth, plot_lines  # noqa: PLC0415

    path = directory / f"{name}.png"
    match name:
        case "bars":
            return [(plot_bars(entries, path), "tokens/s for each dataset")]
        case "bandwidth":
            swept = _swept(entries, "mbps")
            paper = published_bandwidth(swept)
            return [(plot_lines(swept, "mbps", "Mbit/s", path, paper), "tokens/s by bandwidth")]
        case "stages":
            swept = _swept(entries, "stages")
            return [(plot_lines(swept, "stages", "verification stages", path), "tokens/s by stages")]
        case "depth":
            mine = [entry for entry in entries if all(axis in entry["point"] for axis in DEPTHS)]
            return [
                (
                    plot_depth(mine, variant, directory / f"depth-{variant.file_name}.png"),
                    f"tokens/s of {variant.label} by depth",
                )
                for variant in variants(mine)
            ]
        case "gantt":
            return _gantts(scenario, plan, models, directory)


def _gantts(scenario: Scenario, plan: Plan, models: ModelSet, directory: Path) -> list[tuple[Path, str]]:
    """Draw the first prompt on the first pipeline, for each method that has a chart."""
    from flowedge_testbed.report.gantt import plot_gantt  # noqa: PLC0415

    task = charted(scenario, plan)
    charts: list[tuple[Path, str]] = []
    for run, record, trace in _traced(scenario, task, models, directory):
        label = Variant(run.strategy, run.noise).label
        title = (
            f"{label}: {run.setup.title} on {run.setup.num_stages} stages, "
            f"the first prompt, temperature {task.sampling.temperature:g}"
        )
        caption = f"what each device did: {label}"
        if scenario.clock in LIVE:
            matched = f"clocks of the devices matched to within {1e3 * trace.uncertainty_s:.2f} ms"
            title, caption = f"{title}\nmeasured; {matched}", f"{caption}; measured, {matched}"
        path = directory / f"gantt-{run.strategy}.png"
        charts.append((plot_gantt(record, trace, title, path), caption))
    return charts


def _traced(
    scenario: Scenario, task: Task, models: ModelSet, directory: Path
) -> Iterator[tuple[Run, RunRecord, Trace]]:
    """Yield the runs of a task with their traces: stored ones of live runs, others by running them again."""
    if scenario.clock not in LIVE:
        with closing(make_run_backend(scenario.clock, models, directory)) as backend:
            yield from backend.measure(task)
        return
    for run in task.runs:
        record, trace = read_record(directory, run.key), read_trace(directory, run.key)
        if record is not None and trace is not None:
            yield run, record, trace
