"""report.md: the tables, the plots and what they were measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.clocks import make_clock
from testbed.pair import Pair
from testbed.plan import Plan, Run, Task
from testbed.report import tables
from testbed.report.paper import lookup
from testbed.report.tables import Entry, unique
from testbed.scenario import Plot, Scenario, Table

DEPTHS = ("option.depth", "option.expand_depth")
GANTT_METHODS = ("naive_pp", "flowspec_paper", "flowspec")
_NO_PLOTS = "the plots need matplotlib: pip install 'flowedge[bench]'"


def write_report(
    scenario: Scenario, results: Mapping[str, Any], plan: Plan, pair: Pair, directory: Path
) -> Path:
    """Write report.md and its plots; returns the report's path."""
    entries: list[Entry] = results["runs"]
    parts = [f"# {scenario.title}", _settings(scenario, results)]
    for name in _tables(scenario):
        parts += _table(name, scenario, entries)
    parts += ["## Acceptance and latency", tables.detail_table(entries)]
    parts += [
        "## Devices",
        "Computing / sending / waiting, percent of the decode time.",
        tables.use_table(entries),
    ]
    parts += _plots(scenario, entries, plan, pair, directory)
    path = directory / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _settings(scenario: Scenario, results: Mapping[str, Any]) -> str:
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
        f"- Tokens from: {scenario.pair.model} with drafter {scenario.pair.drafter}",
        f"- Emulated: {', '.join(results['profiles'])}, "
        "priced by testbed/profiles; the numbers are in results.json",
        "- ξ is tokens after the first over the decode time (prefill apart); SR is its ratio to naive_pp's; "
        "the paper's own figures are in italics; its FlowSpec is our flowspec_paper.",
    ]
    if "bundled" in results["datasets"]:
        lines.append("- The scenario's datasets were not there: these are the project's own prompts.")
    if results["outputs_differ"]:
        lines.append(f"- **Outputs differ from the first method's: {', '.join(results['outputs_differ'])}.**")
    else:
        lines.append("- Every method put out the same tokens for the same prompt, temperature and seed.")
    return "\n".join(lines)


def _tables(scenario: Scenario) -> list[Table]:
    return scenario.report.tables or ["table1"]


def _table(name: Table, scenario: Scenario, entries: Sequence[Entry]) -> list[str]:
    match name:
        case "table1" | "table2" | "table3":
            title, make = {
                "table1": ("Tokens/s and speedup (the paper's table 1)", tables.main_table),
                "table2": ("Ablation (the paper's table 2)", tables.ablation_table),
                "table3": ("Repeated runs (the paper's table 3)", tables.repeat_table),
            }[name]
            parts = [f"## {title}"]
            for temperature in scenario.temperatures:
                parts += [f"Temperature {temperature:g}", make(entries, temperature)]
            return parts
        case "bandwidth":
            table = tables.sweep_table(_swept(entries, "mbps"), "mbps", published_bandwidth(entries))
            return ["## Tokens/s by bandwidth in Mbit/s", table]
        case "depth":
            mine = [entry for entry in entries if all(axis in entry["point"] for axis in DEPTHS)]
            parts = ["## Tokens/s by depth of the trees"]
            return [*parts, *(tables.depth_table(mine, method) for method in _methods(mine))]


def _swept(entries: Sequence[Entry], axis: str) -> list[Entry]:
    return [entry for entry in entries if axis in entry["point"]]


def _methods(entries: Sequence[Entry]) -> list[str]:
    return unique(entry["method"] for entry in entries)


def published_bandwidth(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """The paper's bandwidth sweep, where it is of the same rates as ours."""
    rates = unique(entry["point"].get("mbps") for entry in entries)
    published = lookup("bandwidth_sweep_tokens_per_s")
    if published is None or published["mbps"] != rates:
        return {}
    return {name: figures for name, figures in published.items() if name != "mbps"}


def _plots(
    scenario: Scenario, entries: Sequence[Entry], plan: Plan, pair: Pair, directory: Path
) -> list[str]:
    try:
        import matplotlib  # noqa: F401, PLC0415 (an extra, and slow)
    except ImportError:
        return ["## Plots", f"None: {_NO_PLOTS}."]
    parts = ["## Plots"]
    for name in scenario.report.plots or ["bars", "gantt"]:
        for path, caption in _plot(name, scenario, entries, plan, pair, directory):
            parts.append(f"![{caption}]({path.name})")
    return parts


def _plot(
    name: Plot, scenario: Scenario, entries: Sequence[Entry], plan: Plan, pair: Pair, directory: Path
) -> list[tuple[Path, str]]:
    from testbed.report.bars import plot_bars  # noqa: PLC0415
    from testbed.report.sweeps import plot_depth, plot_lines  # noqa: PLC0415

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
                    plot_depth(mine, method, directory / f"depth-{method}.png"),
                    f"tokens/s of {method} by depth",
                )
                for method in _methods(mine)
            ]
        case "gantt":
            return _gantts(scenario, plan, pair, directory)


def _gantts(scenario: Scenario, plan: Plan, pair: Pair, directory: Path) -> list[tuple[Path, str]]:
    """A chart of the first prompt's first case, for each method that has one."""
    from testbed.report.gantt import plot_gantt  # noqa: PLC0415

    methods = [name for name in GANTT_METHODS if name in scenario.strategies] or scenario.strategies[-1:]
    task = plan.tasks[0]
    runs: dict[str, Run] = {}
    for run in task.runs:
        if run.strategy in methods:
            runs.setdefault(run.strategy, run)
    chosen = Task(task.prompt, task.sampling, task.max_new_tokens, tuple(runs.values()))
    charts: list[tuple[Path, str]] = []
    for run, record, trace in make_clock(scenario.clock, pair, directory).measure(chosen):
        title = (
            f"{run.strategy}: {run.emulation.model.title} on {len(run.emulation.stages)} stages, "
            f"the first prompt, temperature {task.sampling.temperature:g}"
        )
        path = directory / f"gantt-{run.strategy}.png"
        charts.append((plot_gantt(record, trace, title, path), f"what each device did: {run.strategy}"))
    return charts
