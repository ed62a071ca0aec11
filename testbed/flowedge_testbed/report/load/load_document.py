"""The document report.md of a scenario with load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowedge.core.pipeline_config import drafter_label
from flowedge_testbed.report.draw_places import drawn_line
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.load.load_groups import load_places
from flowedge_testbed.report.load.load_summary import draft_node_lines
from flowedge_testbed.report.load.load_tables import paper_gains, speed_table, use_table
from flowedge_testbed.report.pictures import Picture
from flowedge_testbed.report.summary import BenchSummary
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.scenario_parts import LoadChoice

_COLUMNS = (
    "tokens/s and requests/s are of all clients together, from the first counted request to the last token "
    "of the counted answers. TTFT and queueing count from when a client asks; queueing ends when the first "
    "stage begins to compute the prompt. *Answer* is the time to the last token. *Between tokens* are the "
    "gaps that a client sees: several tokens that come out together count as one gap and then as gaps of "
    "zero. *Per token* is the decode time of an answer over its tokens after the first. *Slowest* is the "
    "tokens/s of the slowest answer over the mean, *least rows* the least share of stage rows that a session "
    "got while it decoded, over an equal share, *refused* the counted requests for which there was no room."
)
_USE = (
    "Shares of the measured time. A forward of several sessions counts once. *D0 alone*: the draft node "
    "computes and no stage does. *Stages idle beside D0*: a stage idles while the draft node computes, mean "
    "of the stages. *All idle*: messages are under way and nothing is computed."
)


def write_load_report(
    scenario: Scenario,
    results: Mapping[str, Any],
    summary: BenchSummary,
    pictures: Sequence[Picture],
    directory: Path,
) -> Path:
    """Write report.md, and return its path."""
    entries: list[Entry] = results["load"]
    parts = [f"# {scenario.title}", summary.markdown, *(picture.markdown for picture in pictures)]
    places = load_places(entries)
    parts += ["## Speed and times", _COLUMNS]
    for place in places:
        parts += [place.label, speed_table(place)]
    if gains := paper_gains(entries):
        parts += ["## Beside SpecPipe-DB's paper", gains]
    parts += ["## Use of the pipeline", _USE]
    for place in places:
        parts += [place.label, use_table(place)]
    held = [f"- {line}" for line in draft_node_lines(entries)]
    nowhere = "The draft node holds the stages up nowhere."
    parts += ["### Where the draft node holds the stages up", "\n".join(held) or nowhere]
    parts += ["## Settings", _settings(scenario, results)]
    path = directory / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _settings(scenario: Scenario, results: Mapping[str, Any]) -> str:
    choice = scenario.load
    assert choice is not None  # the results are of a load
    sets = ", ".join(f"{name} ({found['prompts']})" for name, found in results["datasets"].items())
    lines = [
        f"- Clock: {scenario.clock}{', quick' if results['quick'] else ''}; "
        + ", ".join(f"{name} {number}" for name, number in results["versions"].items()),
        f"- Requests: {_load(choice, scenario)}",
        f"- Prompts: {sets}, mixed by seed {scenario.seeds[0]}",
        f"- Tokens from: {scenario.pair.model} with drafter {drafter_label(scenario.pair.drafter)}",
        drawn_line(results["load"]),
    ]
    if choice.static_batches:
        lines.append(
            f"- In static batches: {', '.join(choice.static_batches)}. All clients' requests begin together, "
            "and the next begin when all of these have ended."
        )
    if results["outputs_differ"]:
        lines.append(f"- **Answers differ from the first method's: {', '.join(results['outputs_differ'])}.**")
    else:
        lines.append("- Every method gave the same answer to the same request, at every load.")
    return "\n".join(lines)


def _load(choice: LoadChoice, scenario: Scenario) -> str:
    least, most = choice.new_tokens or (scenario.max_new_tokens, scenario.max_new_tokens)
    length = f"{most}" if least == most else f"{least} to {most} (drawn for each request)"
    think = f", which think for {choice.think_s:g} s on average" if choice.think_s else ""
    asked = f" of clients that ask again when they are answered{think}" if choice.clients else ""
    either = " or" if choice.clients and choice.arrivals_per_s else ""
    random = f"{either} at random times" if choice.arrivals_per_s else ""
    return (
        f"{choice.requests} counted at each load point, after {choice.warm_up} for each client (or of all "
        f"arrivals) that are not;{asked}{random}; at most {length} new tokens"
    )
