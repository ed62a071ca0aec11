"""The document report.md: a summary, the pictures, the tables, and the settings of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from flowedge.core.pipeline_config import drafter_label
from flowedge.strategies.published.pipespec import PipeSpecSync
from flowedge_testbed.prompts import OWN
from flowedge_testbed.real_pipeline import RealPipeline
from flowedge_testbed.report import tables
from flowedge_testbed.report.draw_places import drawn_line
from flowedge_testbed.report.entries import Entry, at_point, unique
from flowedge_testbed.report.figures import device_tables
from flowedge_testbed.report.figures.columns import ACCEPTANCE, BOUNDS
from flowedge_testbed.report.figures.sweep_tables import sweep_tables, swept_columns
from flowedge_testbed.report.lead_table import lead_tables
from flowedge_testbed.report.pictures import Picture
from flowedge_testbed.report.pipespec_tables import analysis
from flowedge_testbed.report.summary import BenchSummary
from flowedge_testbed.runs import RunPlan
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.scenario_parts import Table

_BOUNDS = (
    "The most tokens/s that the rows in flight allow: (1 + C(M)) / T_lat. M is first the rows as sent, then "
    "the rows that are not pruned yet. testbed/docs/reports.md explains how it is computed."
)

_ACCEPTED = (
    "Percent of the returned segments with which so many tokens came out. Segments that came back empty are "
    "not among them."
)
_MEMORY = (
    "Weights, the KV cache of the longest request with its draft rows, and activations, as the check of a "
    "pipeline's fit adds them up. Devices that are not emulated are left out."
)
_LINKS = "What each device sends for a token of the answers, the prompt's rows included; express: prunes."


def write_report(
    scenario: Scenario,
    results: Mapping[str, Any],
    plan: RunPlan,
    summary: BenchSummary,
    pictures: Sequence[Picture],
    directory: Path,
) -> Path:
    """Write report.md, and return its path."""
    entries: list[Entry] = results["runs"]
    parts = [f"# {scenario.title}", summary.markdown, *(picture.markdown for picture in pictures)]
    for name in scenario.report.tables or ["table1"]:
        parts += _table(name, scenario, entries)
    parts += ["## Acceptance and latency", *_averaged(entries), tables.columns_table(entries, ACCEPTANCE)]
    if any(entry["bound_tokens_per_s"] is not None for entry in entries):
        parts += ["## Share of the bound", _BOUNDS, tables.columns_table(entries, BOUNDS)]
    parts += [
        "## Devices",
        "Computing / sending / waiting, percent of the decode time.",
        device_tables.use_table(entries),
        "## Settings",
        _settings(scenario, results, plan),
    ]
    path = directory / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _averaged(entries: Sequence[Entry]) -> list[str]:
    points = unique(map(at_point, entries))
    return [f"Means over datasets and over the {len(points)} points of the sweep."] if len(points) > 1 else []


def _settings(scenario: Scenario, results: Mapping[str, Any], plan: RunPlan) -> str:
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
        f"- Tokens from: {scenario.pair.target} with drafter {drafter_label(scenario.pair.drafter)}",
        *_origin_of_times(plan),
        drawn_line(results["runs"]),
    ]
    if OWN in results["datasets"] and OWN not in scenario.datasets:
        lines.append("- The scenario's datasets were not found: these are the project's own prompts.")
    if results["outputs_differ"]:
        lines.append(f"- **Outputs differ from the first method's: {', '.join(results['outputs_differ'])}.**")
    else:
        lines.append("- Every method put out the same tokens for the same prompt, temperature and seed.")
    return "\n".join(lines)


def _origin_of_times(plan: RunPlan) -> list[str]:
    figures = (
        "ξ is tokens after the first over the decode time (prefill apart); "
        "SR is its ratio to naive_pp's with plain drafting, ×AR to plain autoregressive decoding's; "
        "an answer loops if some 16 tokens in a row occur three times in it"
    )
    setup = plan.cells[0].case.setup
    if isinstance(setup, RealPipeline):
        return [
            f"- Measured, nothing is emulated: {setup.name} on {setup.hosts}. Times are the draft node's "
            "own; the use of the devices is from their timelines.",
            f"- {figures}. The paper's figures are of other devices and models, and not shown.",
        ]
    return [
        f"- Emulated: {', '.join(dict.fromkeys(cell.case.profile for cell in plan.cells))}, "
        "priced by testbed/profiles; the numbers are in results.json",
        f"- {figures}; the paper's own figures are in italics; its FlowSpec is our flowspec_paper.",
    ]


_BY_TEMPERATURE: dict[Table, tuple[str, Callable[[Sequence[Entry], float], str]]] = {
    "table1": ("Tokens/s and speedup", tables.main_table),
    "table2": ("Ablation", tables.ablation_table),
    "table3": ("Repeated runs", tables.repeat_table),
    "parts": ("Without each part", tables.parts_table),
}


def _table(name: Table, scenario: Scenario, entries: Sequence[Entry]) -> list[str]:
    if name in _BY_TEMPERATURE:
        title, make = _BY_TEMPERATURE[name]
        if name != "parts":
            title += f" (the paper's table {name[-1]})" if scenario.clock != "real" else ", measured"
        each = [(f"Temperature {degrees:g}", make(entries, degrees)) for degrees in scenario.temperatures]
        return [f"## {title}", *chain.from_iterable(each)]
    chosen = scenario.report.columns
    match name:
        case "sweep":
            title = "Along the sweep"
            found = sweep_tables(entries, swept_columns(chosen, entries))
        case "places":
            title, found = "auto beside the best other method, by place", lead_tables(entries)
        case "columns":
            title, found = "Figures", [tables.columns_table(entries, chosen)]
        case "accepted":
            title, found = "Tokens a segment", [_ACCEPTED, tables.accepted_table(entries)]
        case "memory":
            title, found = "Memory in GiB", [_MEMORY, device_tables.memory_table(entries)]
        case "pipespec":
            methods = {each: scenario.method(each)[0] for each in scenario.strategies}
            synchronous = {each for each, strategy in methods.items() if strategy == PipeSpecSync.name}
            title, found = "PipeSpec's analysis beside the counts", analysis(entries, synchronous)
        case _:
            title, found = "kB sent a token", [_LINKS, device_tables.link_table(entries)]
    return [f"## {title}", *found]
