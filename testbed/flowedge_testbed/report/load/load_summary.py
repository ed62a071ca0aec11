"""The lines that a report of load points begins with, and what they say of the draft node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowedge_testbed.report.entries import Entry, unique, variant_of
from flowedge_testbed.report.load.load_groups import LoadPlace, load_places, point_label
from flowedge_testbed.report.origin import Origin
from flowedge_testbed.report.summary import BenchSummary, doubts
from flowedge_testbed.scenario import Scenario

LIMITING = 0.02  # of the time; with less, the draft node does not count as holding the stages up


def summarise_load(
    scenario: Scenario, results: Mapping[str, Any], origin: Origin, command: str
) -> BenchSummary:
    """Return the summary of a scenario with load, as `summarise` does."""
    entries: list[Entry] = results["load"]
    methods = len(unique(entry["method"] for entry in entries))
    points = ", ".join(unique(map(point_label, entries)))
    run = f"{scenario.title}: {methods} {'method' if methods == 1 else 'methods'}, {origin.prompts}; {points}"
    return BenchSummary(
        (
            ("Run", f"{run}{', --quick' if results['quick'] else ''}"),
            ("On", f"{origin.devices}; {origin.tokens}"),
            ("Most tokens", "; ".join(_most(place) for place in load_places(entries))),
            ("Distrust", "; ".join(doubts(scenario, results))),
            ("Command", f"`{command}`"),
        )
    )


def _most(place: LoadPlace) -> str:
    """Return which method puts out the most tokens at each load point, and by how much."""
    told = []
    for value in place.values:
        ranked = sorted(
            (entry for entry in place.entries if entry["at"] == value),
            key=lambda entry: -entry["tokens_per_s"],
        )
        best = ranked[0]
        beside = ""
        if len(ranked) > 1:
            ratio = best["tokens_per_s"] / ranked[1]["tokens_per_s"]
            beside = f", {ratio:.2f} x {variant_of(ranked[1]).label}"
        told.append(
            f"{point_label(best)}: {variant_of(best).label} with {best['tokens_per_s']:.3g} tokens/s{beside}"
        )
    return f"{place.label}: {'; '.join(told)}"


def draft_node_lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield where the draft node held the stages up: it was the busiest device, or computed alone."""
    for entry in entries:
        at = f"{variant_of(entry).label} on {entry['profile']} at {point_label(entry)}"
        busy, beside, alone = (
            f"{100 * share:.0f}%"
            for share in (entry["busy"]["d0"], entry["idle_beside_draft_node"], entry["draft_node_alone"])
        )
        if entry["limit"] == "d0":
            yield (
                f"{at}: the draft node is the busiest device ({busy} of the time), and a stage idles beside "
                f"it for {beside}"
            )
        elif entry["draft_node_alone"] >= LIMITING:
            yield f"{at}: all stages wait for the draft node for {alone} of the time"
